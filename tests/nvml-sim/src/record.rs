//! Which calls are made, written down for whoever wants to make the same.

use crate::handle::Place;
use std::env;
use std::fs::File;
use std::io::Write;
use std::sync::LazyLock;

static RECORD: LazyLock<Option<File>> = LazyLock::new(|| {
    let path = env::var_os("NVML_SIM_CALLS")?;
    let opened = File::options().create(true).append(true).open(&path);
    opened.map_err(|error| eprintln!("nvml-sim: {}: {error}", path.display())).ok()
});

/// A call, and what it is about.
pub fn call(name: &str, place: Option<Place>) {
    add(|| match place {
        None => format!("{name}\n"),
        Some(Place { card, instance: None }) => format!("{name} {card}\n"),
        Some(Place { card, instance: Some(instance) }) => format!("{name} {card}/{instance}\n"),
    });
}

/// What the last call of this thread asks for.
pub fn asked(ids: impl Iterator<Item = u32>) {
    add(|| format!("\t{}\n", ids.map(|id| id.to_string()).collect::<Vec<_>>().join(" ")));
}

fn add(line: impl FnOnce() -> String) {
    if let Some(mut record) = RECORD.as_ref()
        // In one piece: several threads and programs may write.
        && let Err(error) = record.write_all(line().as_bytes())
    {
        eprintln!("nvml-sim: NVML_SIM_CALLS: {error}");
    }
}
