//! Tasks of the repository: `cargo xtask tidy`.

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => {
            let faults = xtask::tidy::check(&xtask::root())?;
            faults.iter().for_each(|fault| eprintln!("{fault}"));
            if !faults.is_empty() {
                bail!("{} faults", faults.len());
            }
            println!("tidy");
            Ok(())
        }
        _ => bail!("found {args:?}, expected: tidy"),
    }
}
