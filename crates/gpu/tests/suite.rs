//! The conformance suite on every adapter of this machine.

use cherenkov_gpu::{GpuDevice, Options, ParamPath, Selection, adapters};
use cherenkov_model::checked::{Bounds, Verb};
use cherenkov_model::suite::{Plan, Scope, run};

const SEED: u64 = 1;

/// Runs the cases of `verbs` on every adapter and says how many there were.
fn check(name: &str, verbs: &[Verb], options: Options) {
    let adapters = adapters();
    if adapters.is_empty() {
        println!("no adapter: {} checks not run ({name})", verbs.len());
        return;
    }
    for adapter in adapters {
        let selection = Selection::Named(adapter.name.clone());
        let mut cases = 0;
        for &verb in verbs {
            let mut make = |eps| {
                let options = Options { eps, ..options };
                GpuDevice::new(&selection, options).unwrap()
            };
            let plan = Plan { seed: SEED, scope: Scope::Verb(verb) };
            match run(&mut make, &plan, &Bounds::f32()) {
                Ok(report) => cases += report.cases,
                Err(failure) => panic!("{adapter}: {failure}"),
            }
        }
        println!("{adapter}: {cases} cases of {name} passed");
    }
}

macro_rules! suites {
    ($($name:ident: [$($verb:ident),*];)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), &[$(Verb::$verb),*], Options::new(1e-6));
        }
    )*};
}

suites! {
    rows: [Embed, Repeat];
    linear: [Linear];
    hyper: [HyperRead];
    conv: [ConvSilu];
    ngram: [NgramAdd];
    delta: [Delta];
    attention: [Attend];
    route: [Route];
    experts: [Experts];
    shared_expert: [SharedExpert];
    recall: [Recall];
}

#[test]
fn parameters_through_a_uniform_buffer() {
    let options = Options { params: Some(ParamPath::Uniform), ..Options::new(1e-6) };
    check("uniform parameters", &[Verb::Repeat, Verb::HyperRead], options);
}
