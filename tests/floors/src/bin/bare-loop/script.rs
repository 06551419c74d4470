//! The calls to make: what the simulated driver wrote down of the agent (`NVML_SIM_CALLS`), a cycle after the other.

/// A cycle begins with the question how many cards there are.
pub const FIRST: &str = "nvmlDeviceGetCount_v2";

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub name: String,
    pub card: Option<usize>,
    /// How many of this name about this card there were before in the cycle: the third question for a clock is about
    /// the third clock.
    pub before: usize,
    /// Ids of field values or of GPM metrics.
    pub ids: Vec<u32>,
}

/// Cycles of calls; a line each, and one that a tab begins has the ids of the call above it.
pub fn parse(text: &str) -> Result<Vec<Vec<Call>>, String> {
    let mut cycles: Vec<Vec<Call>> = Vec::new();
    for line in text.lines() {
        let wrong = || format!("no call: {line:?}");
        if line.starts_with(FIRST) {
            cycles.push(Vec::new());
        }
        let cycle = cycles.last_mut().ok_or_else(|| format!("the first call of a cycle is {FIRST}, not {line:?}"))?;
        if let Some(ids) = line.strip_prefix('\t') {
            let ids: Result<_, _> = ids.split(' ').map(str::parse).collect();
            cycle.last_mut().ok_or_else(wrong)?.ids = ids.map_err(|_| wrong())?;
            continue;
        }
        let (name, card) = match line.split_once(' ') {
            // A MIG instance is no number.
            Some((name, card)) => (name, Some(card.parse().map_err(|_| wrong())?)),
            None => (line, None),
        };
        let before = cycle.iter().filter(|call| (call.name.as_str(), call.card) == (name, card)).count();
        cycle.push(Call { name: name.into(), card, before, ids: Vec::new() });
    }
    if cycles.is_empty() { Err("no cycle".into()) } else { Ok(cycles) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_its_calls_with_their_place_among_those_of_the_same_name() {
        let cycles = parse(&format!("{FIRST}\nnvmlX 0\nnvmlX 0\nnvmlX 1\n\t7 9\n{FIRST}\n")).unwrap();
        let told: Vec<_> = cycles[0].iter().map(|call| (call.card, call.before, call.ids.as_slice())).collect();
        assert_eq!(told, [(None, 0, &[][..]), (Some(0), 0, &[]), (Some(0), 1, &[]), (Some(1), 0, &[7, 9])]);
        assert_eq!(cycles[1].len(), 1);
    }

    #[test]
    fn what_is_no_script_is_refused() {
        for text in ["", "nvmlX 0\n", "\t7\n", &format!("{FIRST}\nnvmlX 0/1\n"), &format!("{FIRST}\n\tx\n")] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
