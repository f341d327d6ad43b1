//! The schedule against simulated requests.

use super::*;
use proptest::prelude::*;

fn entry(id: u64, priority: Priority, stage: Stage) -> Entry {
    Entry { id: RequestId(id), priority, stage, company: Company::Any, passed: 0, drafts: 3 }
}

fn state(entries: Vec<Entry>) -> State {
    State { entries, running_max: 4, step_rows: 8, last: Turn::Decode }
}

#[test]
fn kinds_alternate_and_interactive_prompts_come_first() {
    use Priority::{Background, Interactive};
    let mut s = state(vec![
        entry(1, Background, Stage::Queued),
        entry(2, Interactive, Stage::Decode),
        entry(3, Interactive, Stage::Queued),
    ]);
    assert_eq!(next(&s), Action::Prefill(RequestId(3)));
    s.last = Turn::Prefill;
    assert_eq!(next(&s), Action::Decode(vec![Pick { id: RequestId(2), drafts: 3 }]));
    s.last = Turn::Decode;
    s.entries[0].passed = PATIENCE;
    assert_eq!(next(&s), Action::Prefill(RequestId(1)));
    assert_eq!(next(&state(vec![entry(1, Interactive, Stage::Paused)])), Action::Idle);
}

#[test]
fn drafts_use_the_rows_that_are_left() {
    let decoding = |n| (0..n).map(|i| entry(i, Priority::Interactive, Stage::Decode)).collect();
    let drafts = |n| match next(&state(decoding(n))) {
        Action::Decode(picks) => picks.iter().map(|p| p.drafts).collect::<Vec<_>>(),
        other => panic!("found {other:?}"),
    };
    assert_eq!(drafts(1), [3]);
    assert_eq!(drafts(3), [2, 2, 1]);
    assert_eq!(drafts(8), [0; 8]);
    assert_eq!(drafts(9), [0; 8]);
}

#[test]
fn a_request_of_a_failed_step_goes_alone() {
    let mut s = state((0..3).map(|i| entry(i, Priority::Interactive, Stage::Decode)).collect());
    s.entries[1].company = Company::None;
    let ids = |s: &State| match next(s) {
        Action::Decode(picks) => picks.iter().map(|p| p.id.0).collect::<Vec<_>>(),
        other => panic!("found {other:?}"),
    };
    assert_eq!(ids(&s), [0, 2]);
    s.entries[1].passed = 1;
    assert_eq!(ids(&s), [1]);
}

/// A request of the simulation.
#[derive(Clone, Debug)]
struct Sim {
    arrives: u32,
    background: bool,
    prompt: u32,
    answer: u32,
    alone: bool,
}

fn sims() -> impl Strategy<Value = Vec<Sim>> {
    let one = (0u32..60, any::<bool>(), 1u32..12, 1u32..20, prop::bool::weighted(0.2)).prop_map(
        |(arrives, background, prompt, answer, alone)| Sim {
            arrives,
            background,
            prompt,
            answer,
            alone,
        },
    );
    prop::collection::vec(one, 1..24)
}

fn check_bounds(s: &State, action: &Action) {
    if let Action::Decode(picks) = action {
        let rows: usize = picks.iter().map(|p| 1 + p.drafts).sum();
        assert!(!picks.is_empty() && rows <= s.step_rows);
        let of = |id| s.entries.iter().find(|e| e.id == id).unwrap();
        assert!(picks.iter().all(|p| of(p.id).stage == Stage::Decode));
        assert!(picks.iter().all(|p| p.drafts <= of(p.id).drafts));
        let mut ids: Vec<_> = picks.iter().map(|p| p.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), picks.len());
        if picks.iter().any(|p| of(p.id).company == Company::None) {
            assert_eq!(picks.len(), 1);
        }
    }
    if let Action::Prefill(id) = action {
        let entry = s.entries.iter().find(|e| e.id == *id).unwrap();
        assert!(matches!(entry.stage, Stage::Queued | Stage::Prefill));
        let earlier = s.entries.iter().take_while(|e| e.id != *id);
        let same = earlier.filter(|e| e.priority == entry.priority);
        let begun = s.entries.iter().filter(|e| e.stage != Stage::Queued).count();
        for other in same {
            let ready = other.stage == Stage::Prefill
                || (other.stage == Stage::Queued && begun < s.running_max);
            assert!(!ready, "prompts of one priority are read in order");
        }
        assert!(entry.stage == Stage::Prefill || begun < s.running_max);
    }
}

/// Applies a turn to the simulated requests.
fn apply(s: &mut State, sims: &mut [Sim], action: &Action) {
    for entry in &mut s.entries {
        entry.passed = passed_after(entry, action);
    }
    let served: Vec<RequestId> = match action {
        Action::Prefill(id) => vec![*id],
        Action::Decode(picks) => picks.iter().map(|p| p.id).collect(),
        Action::Idle => Vec::new(),
    };
    s.last = if matches!(action, Action::Prefill(_)) { Turn::Prefill } else { Turn::Decode };
    for id in served {
        let sim = &mut sims[id.0 as usize];
        let at = s.entries.iter().position(|e| e.id == id).unwrap();
        match action {
            Action::Prefill(_) => {
                sim.prompt -= 1;
                s.entries[at].stage = if sim.prompt == 0 { Stage::Decode } else { Stage::Prefill };
            }
            _ => sim.answer -= 1,
        }
        if sim.answer == 0 {
            s.entries.remove(at);
        }
    }
}

proptest! {
    #[test]
    fn everybody_is_served_and_bounds_hold(sims in sims(), running_max in 1usize..10, step_rows in 1usize..9) {
        let mut sims = sims;
        sims.sort_by_key(|s| s.arrives);
        let total: u32 = sims.iter().map(|s| s.prompt + s.answer).sum();
        let mut s = State { entries: Vec::new(), running_max, step_rows, last: Turn::Decode };
        let mut arrived = 0;
        for turn in 0..60 + total {
            while arrived < sims.len() && sims[arrived].arrives <= turn {
                let sim = &sims[arrived];
                let priority = if sim.background { Priority::Background } else { Priority::Interactive };
                let mut e = entry(arrived as u64, priority, Stage::Queued);
                if sim.alone { e.company = Company::None; }
                s.entries.push(e);
                arrived += 1;
            }
            let action = next(&s);
            check_bounds(&s, &action);
            prop_assert_eq!(action == Action::Idle, s.entries.is_empty());
            // Whoever can decode waits at most for everybody else, once.
            for e in s.entries.iter().filter(|e| e.stage == Stage::Decode) {
                prop_assert!(e.passed <= running_max as u32 + HEAD_START);
            }
            apply(&mut s, &mut sims, &action);
        }
        prop_assert!(s.entries.is_empty(), "work is never left undone");
    }

    #[test]
    fn background_prompts_advance_under_endless_interactive_work(prompt in 1u32..6) {
        let mut s = state(vec![entry(0, Priority::Background, Stage::Queued)]);
        let mut left = prompt;
        for turn in 1..=u64::from(prompt * (PATIENCE + 1)) {
            // A fresh interactive prompt every turn; it is read in one.
            s.entries.truncate(1);
            s.entries.push(entry(turn, Priority::Interactive, Stage::Queued));
            let action = next(&s);
            s.entries[0].passed = passed_after(&s.entries[0], &action);
            if action == Action::Prefill(RequestId(0)) {
                left -= 1;
                s.entries[0].stage = Stage::Prefill;
            }
        }
        prop_assert_eq!(left, 0);
    }
}
