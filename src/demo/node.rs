//! The simulated node, its rules, and who plays which part.

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::Error;
use super::actor::Actor;

/// One of the three processes.
#[derive(Debug)]
pub struct Role {
    pub gpu: u32,
    pub memory: &'static str,
    pub utilization: &'static str,
    pub sentence: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Spared,
    Warned,
    Ended,
}

impl Fate {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spared => "spared",
            Self::Warned => "warned",
            Self::Ended => "warned and then ended",
        }
    }
}

pub const CAST: [Role; 3] = [
    Role {
        gpu: 0,
        memory: "24GiB",
        utilization: "90%",
        sentence: "Everyone may use this card, and it is used: it will be spared.",
    },
    Role {
        gpu: 1,
        memory: "40GiB",
        utilization: "0%",
        sentence: "Everyone may use this card, and it lies idle: it will be warned.",
    },
    Role {
        gpu: 2,
        memory: "16GiB",
        utilization: "70%",
        sentence: "Nobody may use this card: it will be warned and then ended.",
    },
];

/// So quick that a minute shows it all; see `rules/` for times that people can live with.
const RULES: &str = r#"
rules:
  - name: unassigned-gpu
    description: Use only the GPUs that are assigned to you.
    about: process
    mode: enforce
    when: [{assigned: false}, {memory: "> 300MiB"}]
    then:
      - {after: 3s, warn: [terminal]}
      - {after: 8s, signal: TERM}
      - {after: 5s, signal: KILL}
  - name: idle-holder
    description: Do not hold a GPU that you do not use.
    about: process
    mode: warn
    when: [{utilization: "< 5%"}, {memory: "> 1GiB"}]
    then: [{after: 5s, warn: [terminal]}]
"#;

/// Files that go when this value goes, or the whole program.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    keeper: Child,
}

impl Folder {
    pub fn new() -> Result<Self, Error> {
        // Its standard input ends when this program does, however that comes about. An agent that outlives a killed demo
        // by a moment may make its folder once more.
        const KEEP: &str = r#"
            read -r over; rm -rf -- "$0"
            [ "$over" ] || for second in 1 2 3 4 5; do sleep 1; rm -rf -- "$0"; done
        "#;
        let made = tempfile::Builder::new().prefix("gpuwarden-demo-").tempdir();
        let folder = made.map_err(|source| Error::Write { path: std::env::temp_dir(), source })?;
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEP]).arg(folder.path());
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
        // Ctrl-C is for those in the foreground.
        let keeper = keeper.process_group(0).spawn().map_err(|source| Error::Start { program: "sh", source })?;
        Ok(Self { path: folder.keep(), keeper })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.file(name);
        fs::write(&path, text).map_err(|source| Error::Write { path, source })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It does its work, or there is nobody to tell.
        let _: io::Result<()> = self.keeper.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(b"over\n"));
        let _: io::Result<_> = self.keeper.wait();
    }
}

/// Everything that the agent reads. JSON is YAML.
pub fn write(folder: &Folder, cast: &[Actor]) -> Result<(), Error> {
    folder.write("scenario.yaml", &scenario(cast).to_string())?;
    folder.write("rules.yaml", RULES)?;
    let config = json!({
        "mode": "enforce",
        "interval": "500ms",
        "rules": ["rules.yaml"],
        "state_dir": folder.file("state"),
        // Nobody but the demo's own children can be hit, whatever their uid.
        "limits": {"start_delay": "0s", "min_uid": 1},
        "assignments": {"fixed": [{"to": "everyone", "gpus": [0, 1]}]},
    });
    folder.write("gpuwarden.yaml", &config.to_string())
}

fn scenario(cast: &[Actor]) -> Value {
    let card = |gpu: u32| {
        let actors = cast.iter().filter(|actor| actor.role.gpu == gpu);
        let load = cast.iter().find(|actor| actor.role.gpu == gpu).map_or("0%", |actor| actor.role.utilization);
        let busy = load != "0%";
        json!({
            "utilization": load,
            "memory_utilization": if busy { "35%" } else { "0%" },
            "temperature": if busy { 64 } else { 34 },
            "power": if busy { "412W" } else { "72W" },
            "performance_state": if busy { 0 } else { 8 },
            "processes": actors.map(|actor| json!({
                "pid": actor.pid(),
                "started": actor.started,
                "memory": actor.role.memory,
                "utilization": actor.role.utilization,
            })).collect::<Vec<_>>(),
        })
    };
    json!({
        "defaults": {
            "name": "NVIDIA H100 80GB HBM3",
            "architecture": "hopper",
            "brand": "nvidia",
            "compute_capability": "9.0",
            "memory": {"total": "80GiB", "reserved": "500MiB"},
            "memory_temperature": 44,
            "power_limits": {"enforced": "700W", "default": "700W", "min": "200W", "max": "700W"},
            "energy": "integrate",
            "clocks": {"graphics": "1980MHz", "sm": "1980MHz", "memory": "2619MHz", "video": "1545MHz"},
            "persistence": true,
            "compute_mode": "default",
        },
        "gpus": (0..4).map(card).collect::<Vec<_>>(),
    })
}
