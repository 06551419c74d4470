//! Clocks, and what holds them down.

use super::Card;
use crate::export::series::{Series, by, counters, gauge, gauges, truth};

pub fn rows<'a>() -> Vec<Series<Card<'a>>> {
    vec![
        gauges("gpu_clock_hertz", &["clock"], "Clock of a part of the card.", |card| {
            card.list(|told| by("clock", told.clocks.iter().map(|(name, value)| (*name, value.0))))
        }),
        gauges("gpu_clock_max_hertz", &["clock"], "Highest clock of a part of the card.", |card| {
            card.list(|told| by("clock", told.clocks_max.iter().map(|(name, value)| (*name, value.0))))
        }),
        gauge("gpu_performance_state", "Performance state, 0 (fastest) to 15.", |card| {
            card.count(|told| told.performance_state)
        }),
        gauges(
            "gpu_clock_event_active",
            &["reason"],
            "Whether the clocks are held down for this reason, of those that the card knows.",
            |card| card.list(|told| by("reason", told.clock_events.iter().map(|(name, holds)| (*name, truth(*holds))))),
        ),
        counters(
            "gpu_clock_event_seconds_total",
            &["reason"],
            "Time in which the clocks were held down since the driver was loaded, for the reasons that the driver times.",
            |card| {
                card.list(|told| {
                    by("reason", told.clock_event_times.iter().map(|(name, time)| (*name, time.as_secs_f64())))
                })
            },
        ),
    ]
}
