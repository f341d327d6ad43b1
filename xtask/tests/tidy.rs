//! The house rules hold.

#[test]
fn the_repository_is_tidy() {
    let faults = xtask::tidy::check(&xtask::root()).expect("every source file can be parsed");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
