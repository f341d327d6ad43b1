//! The suite on the reference itself, and on references with one fault each.

mod checked;
mod faulty;

use cherenkov_model::checked::{Bounds, Verb};
use cherenkov_model::reference::Reference;
use cherenkov_model::suite::{self, Failure, Plan, Scope};
use faulty::{Call, Fault, Faulty};

#[test]
fn the_reference_keeps_every_promise() {
    let plan = Plan { seed: 1, scope: Scope::All };
    let report = suite::run(&mut Reference::new, &plan, &Bounds::exact())
        .unwrap_or_else(|failure| panic!("{failure}"));
    println!("{report:?}");
    assert!(report.cases > 80, "{report:?}");
}

/// What the suite says about a fault, looking at one verb.
fn found(fault: Fault, verb: Verb, bounds: &Bounds) -> Option<Failure> {
    let plan = Plan { seed: 3, scope: Scope::Verb(verb) };
    suite::run(&mut |eps| Faulty::new(eps, fault), &plan, bounds).err()
}

/// The suite must name `verb` and, in its description of the run, `scenario`.
#[track_caller]
fn caught(fault: Fault, verb: Verb, scenario: &str) {
    let failure = found(fault, verb, &Bounds::exact());
    let failure = failure.unwrap_or_else(|| panic!("{fault:?} was not caught"));
    assert_eq!(failure.verb, verb, "{fault:?}: {failure}");
    assert!(failure.scenario.contains(scenario), "{fault:?}: {failure}");
}

/// Verbs with values to spoil.
const VALUED: [Verb; 19] = [
    Verb::Embed,
    Verb::Repeat,
    Verb::AddRepeat,
    Verb::Norm,
    Verb::Linear,
    Verb::LinearStreams,
    Verb::HyperRead,
    Verb::HyperWrite,
    Verb::HyperTurn,
    Verb::ConvSilu,
    Verb::Delta,
    Verb::Attend,
    Verb::Route,
    Verb::Experts,
    Verb::SharedExpert,
    Verb::Combine,
    Verb::NgramAdd,
    Verb::Recall,
    Verb::Logits,
];

#[test]
fn a_wrong_value_is_named_by_verb() {
    for verb in VALUED {
        caught(Fault::Off(verb, None), verb, "");
    }
}

#[test]
fn a_bit_that_depends_on_company_is_named_by_verb() {
    for verb in VALUED {
        caught(Fault::Company(verb), verb, "");
    }
}

#[test]
fn values_that_are_no_numbers_stay_so_and_stay_in_their_row() {
    let moved = [Verb::Embed, Verb::Recall];
    for verb in VALUED.into_iter().filter(|verb| !moved.contains(verb)) {
        caught(Fault::Hides(verb), verb, "no number");
        caught(Fault::Spreads(verb), verb, "no number");
    }
}

#[test]
fn among_equals_the_lowest_must_come_first() {
    caught(Fault::HighestFirst(Verb::Route), Verb::Route, "against the reference");
    caught(Fault::HighestFirst(Verb::Select), Verb::Select, "against the reference");
}

#[test]
fn choices_and_keys_are_compared_with_the_reference() {
    caught(Fault::Newest, Verb::Select, "against the reference");
    caught(Fault::LosesIndexKey, Verb::Select, "against the reference");
    caught(Fault::LosesKey, Verb::Attend, "against the reference");
    caught(Fault::TextOnly, Verb::Select, "against the reference");
}

#[test]
fn the_split_into_waves_must_not_matter() {
    caught(Fault::Waves, Verb::Experts, "");
}

#[test]
fn a_row_taken_back_must_leave_nothing() {
    for verb in [Verb::ConvSilu, Verb::NgramAdd, Verb::Recall] {
        caught(Fault::ShortRing(1), verb, "drafts");
    }
    // The ring of index keys holds one row more than a block needs.
    caught(Fault::ShortRing(2), Verb::Select, "drafts");
    caught(Fault::Settles(0), Verb::Delta, "drafts");
    caught(Fault::Settles(8), Verb::Delta, "drafts");
}

#[test]
fn state_must_be_reset_moved_and_saved_whole() {
    for verb in [Verb::ConvSilu, Verb::NgramAdd, Verb::Delta, Verb::Select, Verb::Recall] {
        caught(Fault::Skips(Call::CopySlot), verb, "copy_slot");
    }
    for verb in [Verb::ConvSilu, Verb::NgramAdd, Verb::Delta, Verb::KvAppend, Verb::Recall] {
        caught(Fault::Skips(Call::LoadSlot), verb, "save and load");
    }
    caught(Fault::Skips(Call::ResetSlot), Verb::Delta, "");
    caught(Fault::Skips(Call::CopyPage), Verb::Select, "copy_page");
    caught(Fault::Skips(Call::LoadPage), Verb::KvAppend, "save and load");
    caught(Fault::SortsPages, Verb::Select, "");
}

/// Int8 activations are within the bound meant for them, and not within the exact one.
#[test]
fn rounding_of_activations_fits_its_bound() {
    let products = [
        Verb::Linear,
        Verb::LinearStreams,
        Verb::Logits,
        Verb::Route,
        Verb::Experts,
        Verb::SharedExpert,
    ];
    for verb in products {
        if let Some(failure) = found(Fault::Int8, verb, &Bounds::int8()) {
            panic!("{failure}");
        }
        assert!(found(Fault::Int8, verb, &Bounds::f32()).is_some(), "{verb}");
    }
}
