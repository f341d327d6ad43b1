//! The suite on the reference itself.

use cherenkov_model::checked::Bounds;
use cherenkov_model::reference::Reference;
use cherenkov_model::suite::{self, Plan, Scope};

#[test]
fn the_reference_keeps_every_promise() {
    for seed in [1, 2] {
        let plan = Plan { seed, scope: Scope::All };
        let report = suite::run(&mut Reference::new, &plan, &Bounds::exact())
            .unwrap_or_else(|failure| panic!("{failure}"));
        println!("{report:?}");
        assert!(report.cases > 80, "{report:?}");
    }
}
