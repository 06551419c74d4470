//! What a card tells, on the page: each family under each quirk of drivers, as the exact lines or their exact absence.

use crate::harness::{Agent, Node, Page};
use crate::pages::promtool_is_silent;
use crate::peers::{Library, sees};
use expect_test::{Expect, expect};
use nvml_sim::Scenario;
use nvml_sim::units::Bytes;
use nvml_sim::value::Error;
use std::collections::BTreeMap;
use std::fmt::Write;

const CLOCKS: &[&str] =
    &["clock_hertz", "clock_max_hertz", "performance_state", "clock_event_active", "clock_event_seconds_total"];
const PCIE: &[&str] = &[
    "pcie_link_generation",
    "pcie_link_generation_max",
    "pcie_link_width",
    "pcie_link_width_max",
    "pcie_replays_total",
    "pcie_bytes_total",
    "pcie_throughput_bytes_per_second",
];
const NVLINK: &[&str] = &["nvlink_up", "nvlink_errors_total", "nvlink_bytes_total", "fabric_state"];
const ECC: &[&str] = &[
    "ecc_mode",
    "ecc_errors_total",
    "ecc_lifetime_errors_total",
    "ecc_sram_threshold_exceeded",
    "retired_pages",
    "retired_pages_pending",
    "remapped_rows",
    "row_remap_pending",
    "row_remap_failure",
    "row_remap_banks",
];
const TEMPERATURE: &[&str] = &[
    "temperature_celsius",
    "memory_temperature_celsius",
    "temperature_margin_celsius",
    "temperature_threshold_celsius",
    "fan_speed_ratio",
];
const POWER: &[&str] = &["power_watts", "power_limit_watts", "energy_joules_total"];
const UTILIZATION: &[&str] = &[
    "utilization_ratio",
    "memory_controller_utilization_ratio",
    "encoder_utilization_ratio",
    "decoder_utilization_ratio",
    "jpeg_utilization_ratio",
    "ofa_utilization_ratio",
];
const MEMORY: &[&str] = &["memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"];

/// A node with one card, as its scenario says.
fn node(scenario: &str) -> Node {
    let mut node = Node::new(0);
    turns_to(&mut node, scenario);
    node
}

fn turns_to(node: &mut Node, scenario: &str) {
    let scenario: Scenario = scenario.parse().unwrap();
    node.change(|now| *now = scenario);
}

/// Of each family `gpuwarden_gpu_…` its lines, without what they begin with and without the labels of the card.
fn lines(page: &Page, families: &[&str]) -> String {
    const CARD: &str = "gpu=\"0\",uuid=\"GPU-00000000-0000-4000-8000-000000000000\"";
    promtool_is_silent(&page.text);
    let mut lines = String::new();
    for family in families {
        let samples = page.text.lines().filter_map(|line| line.strip_prefix("gpuwarden_gpu_")?.strip_prefix(family));
        for sample in samples.filter(|rest| rest.starts_with('{')) {
            let rest = sample.replacen(&format!("{CARD},"), "", 1).replacen(&format!("{{{CARD}}}"), "", 1);
            writeln!(lines, "{family}{rest}").unwrap();
        }
    }
    lines
}

/// What the first page shows of a card.
fn check(scenario: &str, families: &[&str], expected: &Expect) {
    expected.assert_eq(&lines(&node(scenario).start().page(), families));
}

/// Errors of the driver by call and name.
fn errors(page: &Page) -> Vec<(&str, &str, f64)> {
    let errors = page.all("gpuwarden_nvml_errors_total", &[]);
    errors.map(|error| (&*error.labels["call"], &*error.labels["error"], error.value)).collect()
}

fn everything() -> Vec<&'static str> {
    [CLOCKS, PCIE, NVLINK, ECC, TEMPERATURE, POWER, MEMORY, &["recovery_action"]].concat()
}

#[test]
fn each_engine_is_told_by_itself() {
    check(
        "gpus: [{utilization: 37%, memory_utilization: 9%, encoder_utilization: 5%, decoder_utilization: 0%,
            jpeg_utilization: 3%, ofa_utilization: 2%}]",
        UTILIZATION,
        &expect![[r#"
            utilization_ratio 0.37
            memory_controller_utilization_ratio 0.09
            encoder_utilization_ratio 0.05
            decoder_utilization_ratio 0
            jpeg_utilization_ratio 0.03
            ofa_utilization_ratio 0.02
        "#]],
    );
    // Under MIG the driver has none.
    check(
        "gpus: [{utilization: 37%, jpeg_utilization: 3%, ofa_utilization: 2%, mig: {enabled: true}}]",
        UTILIZATION,
        &expect![[""]],
    );
}

#[test]
fn temperatures_power_and_fans_are_told_in_their_units() {
    check(
        "gpus: [{temperature: 41, memory_temperature: 52, temperature_margin: -3, recovery_action: 1,
            temperature_thresholds: {shutdown: 92, slowdown: 89, memory_max: 95, gpu_max: 87}, fans: [30%, 120%],
            power: 120.5W, power_limits: {enforced: 650W, default: 700W, min: 200W, max: 700W}, energy: 123456J}]",
        &[TEMPERATURE, POWER, &["recovery_action"]].concat(),
        &expect![[r#"
            temperature_celsius 41
            memory_temperature_celsius 52
            temperature_margin_celsius -3
            temperature_threshold_celsius{threshold="slowdown"} 89
            temperature_threshold_celsius{threshold="shutdown"} 92
            temperature_threshold_celsius{threshold="gpu_max"} 87
            temperature_threshold_celsius{threshold="memory_max"} 95
            fan_speed_ratio{fan="0"} 0.3
            fan_speed_ratio{fan="1"} 1.2
            power_watts 120.5
            power_limit_watts{limit="enforced"} 650
            power_limit_watts{limit="default"} 700
            power_limit_watts{limit="min"} 200
            power_limit_watts{limit="max"} 700
            energy_joules_total 123456
            recovery_action 1
        "#]],
    );
}

#[test]
fn each_reason_to_hold_the_clocks_down_is_there_from_the_first_page() {
    check(
        "gpus: [{clocks: {graphics: 1755MHz, sm: 1755MHz, memory: 2619MHz, video: 1545MHz},
            max_clocks: {graphics: 1980MHz, sm: 1980MHz, memory: 2619MHz, video: 1545MHz}, performance_state: 2,
            clock_events: [sw_power_cap, hw_slowdown],
            clock_event_times: {sw_power_cap: 12500ms, sync_boost: 0s, sw_thermal_slowdown: 1s,
                                hw_thermal_slowdown: 2s, hw_power_brake_slowdown: 3s}}]",
        CLOCKS,
        &expect![[r#"
            clock_hertz{clock="graphics"} 1755000000
            clock_hertz{clock="sm"} 1755000000
            clock_hertz{clock="memory"} 2619000000
            clock_hertz{clock="video"} 1545000000
            clock_max_hertz{clock="graphics"} 1980000000
            clock_max_hertz{clock="sm"} 1980000000
            clock_max_hertz{clock="memory"} 2619000000
            clock_max_hertz{clock="video"} 1545000000
            performance_state 2
            clock_event_active{reason="gpu_idle"} 0
            clock_event_active{reason="applications_clocks_setting"} 0
            clock_event_active{reason="sw_power_cap"} 1
            clock_event_active{reason="hw_slowdown"} 1
            clock_event_active{reason="sync_boost"} 0
            clock_event_active{reason="sw_thermal_slowdown"} 0
            clock_event_active{reason="hw_thermal_slowdown"} 0
            clock_event_active{reason="hw_power_brake_slowdown"} 0
            clock_event_active{reason="display_clock_setting"} 0
            clock_event_seconds_total{reason="sw_power_cap"} 12.5
            clock_event_seconds_total{reason="sync_boost"} 0
            clock_event_seconds_total{reason="sw_thermal_slowdown"} 1
            clock_event_seconds_total{reason="hw_thermal_slowdown"} 2
            clock_event_seconds_total{reason="hw_power_brake_slowdown"} 3
        "#]],
    );
}

#[test]
fn a_driver_that_numbers_its_fields_anew_is_asked_by_the_new_numbers() {
    const TIMED: &str =
        "clock_event_times: {sw_thermal_slowdown: 1s, hw_thermal_slowdown: 2s, hw_power_brake_slowdown: 3s}";
    let told = |version: &str| {
        let node = node(&format!("driver: {{version: {version}}}\ngpus: [{{{TIMED}}}]"));
        lines(&node.start().page(), CLOCKS)
    };
    let before = told("580.65.06");
    expect![[r#"
        clock_event_seconds_total{reason="sw_thermal_slowdown"} 1
        clock_event_seconds_total{reason="hw_thermal_slowdown"} 2
        clock_event_seconds_total{reason="hw_power_brake_slowdown"} 3
    "#]]
    .assert_eq(&before);
    assert_eq!(told("580.82.07"), before);
    assert_eq!(told("590.10"), before);
}

#[test]
fn a_pcie_link_is_told_with_what_went_over_it_since_the_agent_began() {
    const CARD: &str = "gpus: [{pcie: {generation: 4, max_generation: 5, width: 8, max_width: 16, replays: 7,
        tx: 100MiB, rx: 200MiB, tx_total: 4294967000B, rx_total: 9GiB}}]";
    let mut node = node(CARD);
    let agent = node.start();
    expect![[r#"
        pcie_link_generation 4
        pcie_link_generation_max 5
        pcie_link_width 8
        pcie_link_width_max 16
        pcie_replays_total 7
        pcie_bytes_total{direction="rx"} 0
        pcie_bytes_total{direction="tx"} 0
    "#]]
    .assert_eq(&lines(&agent.page(), PCIE));
    // One counter is full after 32 bits, the other is wider.
    node.change(|scenario| {
        scenario.gpus[0].pcie.tx_total = Bytes(704).into();
        scenario.gpus[0].pcie.rx_total = Bytes((9 << 30) + 5).into();
    });
    expect![[r#"
        pcie_bytes_total{direction="rx"} 5
        pcie_bytes_total{direction="tx"} 1000
    "#]]
    .assert_eq(&lines(&agent.cycles(1), &["pcie_bytes_total"]));
    // The driver's own has begun again, and what is counted does not become less.
    node.change(|scenario| scenario.gpus[0].pcie.rx_total = Bytes(10).into());
    expect![[r#"
        pcie_bytes_total{direction="rx"} 15
        pcie_bytes_total{direction="tx"} 1000
    "#]]
    .assert_eq(&lines(&agent.cycles(1), &["pcie_bytes_total"]));
}

#[test]
fn the_throughput_of_the_link_is_measured_where_it_is_asked_for() {
    let node = node("gpus: [{pcie: {width: 16, tx: 100MiB, rx: 200MiB}}]");
    node.configure("metrics: {pcie: false, pcie_throughput: true}");
    expect![[r#"
        pcie_throughput_bytes_per_second{direction="rx"} 209715200
        pcie_throughput_bytes_per_second{direction="tx"} 104857600
    "#]]
    .assert_eq(&lines(&node.start().page(), PCIE));
}

const LINKS: &str = "gpus: [{fabric: {state: 3}, nvlink: {links: [true, true, false], replay_errors: 0,
    recovery_errors: 2, crc_errors: 1, tx_total: 1GiB, rx_total: 2GiB}";

#[test]
fn nvlinks_are_told_each_and_their_counters_together() {
    check(
        &format!("{LINKS}}}]"),
        NVLINK,
        &expect![[r#"
        nvlink_up{link="0"} 1
        nvlink_up{link="1"} 1
        nvlink_up{link="2"} 0
        nvlink_errors_total{type="replay"} 0
        nvlink_errors_total{type="recovery"} 6
        nvlink_errors_total{type="crc"} 3
        nvlink_bytes_total{direction="rx"} 6442450944
        nvlink_bytes_total{direction="tx"} 3221225472
        fabric_state 3
    "#]],
    );
}

#[test]
fn where_there_are_no_counters_of_all_links_those_of_each_are_added_up() {
    // The totals of errors, and the throughput in KiB.
    let without = [38, 52, 59, 138, 139].map(|field| format!("{field}: {{error: NOT_SUPPORTED}}")).join(", ");
    check(
        &format!("{LINKS}, fields: {{{without}}}}}]"),
        NVLINK,
        &expect![[r#"
        nvlink_up{link="0"} 1
        nvlink_up{link="1"} 1
        nvlink_up{link="2"} 0
        nvlink_errors_total{type="replay"} 0
        nvlink_errors_total{type="recovery"} 6
        nvlink_errors_total{type="crc"} 3
        nvlink_bytes_total{direction="rx"} 6442450944
        nvlink_bytes_total{direction="tx"} 3221225472
        fabric_state 3
    "#]],
    );
}

#[test]
fn an_older_driver_tells_the_state_of_a_link_by_the_function_for_it() {
    check(
        &format!("{LINKS}, fields: {{165: {{error: INVALID_ARGUMENT}}}}}}]"),
        &["nvlink_up"],
        &expect![[r#"
        nvlink_up{link="0"} 1
        nvlink_up{link="1"} 1
        nvlink_up{link="2"} 0
    "#]],
    );
}

#[test]
fn a_card_without_an_nvswitch_has_no_state_of_a_fabric() {
    check(
        "gpus: [{fabric: {state: 0}, nvlink: {links: [true]}}]",
        NVLINK,
        &expect![[r#"
        nvlink_up{link="0"} 1
    "#]],
    );
}

const MEMORY_ERRORS: &str = "ecc: {mode: true, sram_threshold_exceeded: true,
    volatile: {corrected: {dram: 0, sram: 1}, uncorrected: {dram: 2, sram: 3}},
    aggregate: {corrected: {dram: 4, sram: 5}, uncorrected: {dram: 6, sram: 7}}},
    retired_pages: {single_bit: [4096, 8192], double_bit: [], pending: true},
    remapped_rows: {corrected: 0, uncorrected: 1, pending: true, failure: false},
    row_remap_banks: {max: 639, high: 0, partial: 1, low: 0, none: 0}";

#[test]
fn errors_of_the_memory_are_told_by_kind_and_place_with_what_they_cost() {
    check(
        &format!("gpus: [{{{MEMORY_ERRORS}}}]"),
        ECC,
        &expect![[r#"
        ecc_mode 1
        ecc_errors_total{type="corrected",location="dram"} 0
        ecc_errors_total{type="corrected",location="sram"} 1
        ecc_errors_total{type="uncorrected",location="dram"} 2
        ecc_errors_total{type="uncorrected",location="sram"} 3
        ecc_lifetime_errors_total{type="corrected",location="dram"} 4
        ecc_lifetime_errors_total{type="corrected",location="sram"} 5
        ecc_lifetime_errors_total{type="uncorrected",location="dram"} 6
        ecc_lifetime_errors_total{type="uncorrected",location="sram"} 7
        ecc_sram_threshold_exceeded 1
        retired_pages{cause="corrected"} 2
        retired_pages{cause="uncorrected"} 0
        retired_pages_pending 1
        remapped_rows{cause="corrected"} 0
        remapped_rows{cause="uncorrected"} 1
        row_remap_pending 1
        row_remap_failure 0
        row_remap_banks{availability="max"} 639
        row_remap_banks{availability="high"} 0
        row_remap_banks{availability="partial"} 1
        row_remap_banks{availability="low"} 0
        row_remap_banks{availability="none"} 0
    "#]],
    );
}

#[test]
fn a_card_that_does_not_sum_up_its_sram_is_asked_place_by_place() {
    // Neither the summary nor the fields: as cards before Ampere.
    let without = [1, 11, 12, 22, 23].map(|field| format!("{field}: {{error: NOT_SUPPORTED}}")).join(", ");
    check(
        &format!(
            "gpus: [{{{MEMORY_ERRORS}, fields: {{{without}}},
                errors: {{nvmlDeviceGetSramEccErrorStatus: NOT_SUPPORTED}}}}]"
        ),
        &["ecc_mode", "ecc_errors_total", "ecc_lifetime_errors_total", "ecc_sram_threshold_exceeded"],
        &expect![[r#"
            ecc_mode 1
            ecc_errors_total{type="corrected",location="dram"} 0
            ecc_errors_total{type="corrected",location="sram"} 1
            ecc_errors_total{type="uncorrected",location="dram"} 2
            ecc_errors_total{type="uncorrected",location="sram"} 3
            ecc_lifetime_errors_total{type="corrected",location="dram"} 4
            ecc_lifetime_errors_total{type="corrected",location="sram"} 5
            ecc_lifetime_errors_total{type="uncorrected",location="dram"} 6
            ecc_lifetime_errors_total{type="uncorrected",location="sram"} 7
        "#]],
    );
}

#[test]
fn a_memory_that_is_not_watched_has_no_errors_that_are_zero() {
    check(
        "gpus: [{ecc: {mode: false, volatile: {corrected: {dram: 0}}}}]",
        ECC,
        &expect![[r#"
        ecc_mode 0
    "#]],
    );
}

#[test]
fn a_vgpu_guest_is_not_asked_for_remapped_rows() {
    // Each such question would leave a complaint in the kernel's log.
    let rows = [142, 143, 144, 145].map(|field| format!("{field}: {{error: UNKNOWN}}")).join(", ");
    let told = |virtualization: &str| {
        let scenario = format!(
            "gpus: [{{{MEMORY_ERRORS}, virtualization: {virtualization}, fields: {{{rows}}},
                errors: {{nvmlDeviceGetRowRemapperHistogram: UNKNOWN, nvmlDeviceGetRemappedRows: UNKNOWN}}}}]"
        );
        node(&scenario).start().cycles(1)
    };
    let page = told("vgpu");
    expect![[r#"
        ecc_mode 1
        ecc_errors_total{type="corrected",location="dram"} 0
        ecc_errors_total{type="corrected",location="sram"} 1
        ecc_errors_total{type="uncorrected",location="dram"} 2
        ecc_errors_total{type="uncorrected",location="sram"} 3
        ecc_lifetime_errors_total{type="corrected",location="dram"} 4
        ecc_lifetime_errors_total{type="corrected",location="sram"} 5
        ecc_lifetime_errors_total{type="uncorrected",location="dram"} 6
        ecc_lifetime_errors_total{type="uncorrected",location="sram"} 7
        ecc_sram_threshold_exceeded 1
        retired_pages{cause="corrected"} 2
        retired_pages{cause="uncorrected"} 0
        retired_pages_pending 1
    "#]]
    .assert_eq(&lines(&page, ECC));
    assert_eq!(errors(&page), []);
    // As long as a card cannot say what it is, it may be one.
    let unsure = told("{error: UNKNOWN}");
    assert_eq!(lines(&unsure, ECC), lines(&page, ECC));
    assert!(
        errors(&unsure).iter().all(|(call, ..)| *call == "nvmlDeviceGetVirtualizationMode"),
        "{:?}",
        errors(&unsure)
    );
}

#[test]
fn what_a_card_does_not_tell_is_absent() {
    let page = node("gpus: [{}]").start().page();
    assert_eq!(lines(&page, &everything()), "");
    assert_eq!(errors(&page), []);
}

#[test]
fn what_could_not_be_told_is_absent_and_asked_for_again() {
    let failing = "{error: UNKNOWN}";
    let mut node = node(&format!(
        "gpus: [{{temperature: 41, memory_temperature: {failing}, temperature_margin: {failing}, energy: 5J,
            temperature_thresholds: {{slowdown: {failing}, shutdown: 92}}, recovery_action: {failing},
            fans: [{failing}, 31%],
            nvlink: {{links: [{failing}, true], crc_errors: {failing}, replay_errors: 0}},
            pcie: {{tx_total: {failing}, rx_total: 1GiB}},
            ecc: {{mode: true, volatile: {{corrected: {{dram: {failing}}}, uncorrected: {{dram: 0}}}}}},
            clock_events: {failing}, row_remap_banks: {failing}, fabric: {failing}}}]"
    ));
    let agent = node.start();
    let page = agent.cycles(2);
    expect![[r#"
        pcie_bytes_total{direction="rx"} 0
        nvlink_up{link="1"} 1
        nvlink_errors_total{type="replay"} 0
        ecc_mode 1
        ecc_errors_total{type="uncorrected",location="dram"} 0
        temperature_celsius 41
        temperature_threshold_celsius{threshold="shutdown"} 92
        fan_speed_ratio{fan="1"} 0.31
        energy_joules_total 5
    "#]]
    .assert_eq(&lines(&page, &everything()));
    let failed = errors(&page);
    // How the cards are wired is asked once.
    let again = failed.iter().filter(|(call, ..)| *call != "nvmlDeviceGetNvLinkState");
    assert!(again.clone().all(|(_, error, count)| *error == "UNKNOWN" && *count >= 2.0), "{failed:?}");
    expect![[r#"
        [
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetFanSpeed_v2",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetGpuFabricInfoV",
            "nvmlDeviceGetMarginTemperature",
            "nvmlDeviceGetNvLinkState",
            "nvmlDeviceGetRowRemapperHistogram",
            "nvmlDeviceGetSupportedClocksEventReasons",
            "nvmlDeviceGetTemperatureThreshold",
        ]
    "#]]
    .assert_debug_eq(&failed.iter().map(|(call, ..)| *call).collect::<Vec<_>>());
    turns_to(
        &mut node,
        "gpus: [{temperature: 41, memory_temperature: 52, temperature_margin: 30, energy: 5J,
            temperature_thresholds: {slowdown: 89, shutdown: 92}, recovery_action: 0, fans: [30%, 31%],
            nvlink: {links: [false, true], crc_errors: 0, replay_errors: 0}, pcie: {tx_total: 0, rx_total: 1GiB},
            ecc: {mode: true, volatile: {corrected: {dram: 0}, uncorrected: {dram: 0}}},
            clock_events: [], row_remap_banks: {max: 639}, fabric: {state: 2}}]",
    );
    expect![[r#"
        clock_event_active{reason="gpu_idle"} 0
        clock_event_active{reason="applications_clocks_setting"} 0
        clock_event_active{reason="sw_power_cap"} 0
        clock_event_active{reason="hw_slowdown"} 0
        clock_event_active{reason="sync_boost"} 0
        clock_event_active{reason="sw_thermal_slowdown"} 0
        clock_event_active{reason="hw_thermal_slowdown"} 0
        clock_event_active{reason="hw_power_brake_slowdown"} 0
        clock_event_active{reason="display_clock_setting"} 0
        pcie_bytes_total{direction="rx"} 0
        pcie_bytes_total{direction="tx"} 0
        nvlink_up{link="0"} 0
        nvlink_up{link="1"} 1
        nvlink_errors_total{type="replay"} 0
        nvlink_errors_total{type="crc"} 0
        fabric_state 2
        ecc_mode 1
        ecc_errors_total{type="corrected",location="dram"} 0
        ecc_errors_total{type="uncorrected",location="dram"} 0
        row_remap_banks{availability="max"} 639
        row_remap_banks{availability="high"} 0
        row_remap_banks{availability="partial"} 0
        row_remap_banks{availability="low"} 0
        row_remap_banks{availability="none"} 0
        temperature_celsius 41
        memory_temperature_celsius 52
        temperature_margin_celsius 30
        temperature_threshold_celsius{threshold="slowdown"} 89
        temperature_threshold_celsius{threshold="shutdown"} 92
        fan_speed_ratio{fan="0"} 0.3
        fan_speed_ratio{fan="1"} 0.31
        energy_joules_total 5
        recovery_action 0
    "#]]
    .assert_eq(&lines(&agent.cycles(1), &everything()));
}

#[test]
fn where_no_number_is_told_by_its_id_the_functions_of_old_tell_some() {
    const CARD: &str = "energy: 5J, memory_temperature: 52, pcie: {replays: 3, tx_total: 1GiB},
        clock_event_times: {sw_power_cap: 1s}, nvlink: {links: [true]},
        ecc: {mode: true, volatile: {corrected: {dram: 1}}}, retired_pages: {pending: false}";
    let told = |error: &str| {
        let scenario = format!("gpus: [{{{CARD}, errors: {{nvmlDeviceGetFieldValues: {error}}}}}]");
        let page = node(&scenario).start().page();
        (lines(&page, &everything()), errors(&page).len())
    };
    let (without, errors) = told("FUNCTION_NOT_FOUND");
    expect![[r#"
        pcie_replays_total 3
        ecc_mode 1
        ecc_errors_total{type="corrected",location="dram"} 1
        energy_joules_total 5
    "#]]
    .assert_eq(&without);
    assert_eq!(errors, 0);
    // One that fails this time is the one to ask next time.
    assert_eq!(told("UNKNOWN"), (String::new(), 1));
}

/// The driver is unloaded and loaded again, meanwhile with another scenario.
fn reloaded(node: &mut Node, agent: &Agent, scenario: &str) -> Page {
    let up = |page: &Page| page.value("gpuwarden_source_up", &[("source", "nvml")]);
    node.change(|scenario| scenario.errors = [("*".into(), Error::UNINITIALIZED)].into());
    agent.shows("the driver is gone", |page| up(page) == Some(0.0));
    turns_to(node, scenario);
    agent.shows("the driver is back", |page| up(page) == Some(1.0))
}

#[test]
fn what_was_refused_or_is_constant_is_not_asked_for_again_while_the_driver_is_loaded() {
    let mut node =
        node("gpus: [{temperature: 41, power_limits: {enforced: 300W, max: 400W, min: 100W, default: 300W}}]");
    const SHOWN: &[&str] = &["temperature_celsius", "memory_temperature_celsius", "power_limit_watts"];
    let agent = node.start();
    const OTHERWISE: &str = "gpus: [{temperature: 42, memory_temperature: 52,
        power_limits: {enforced: 200W, max: 500W, min: 200W, default: 500W}}]";
    turns_to(&mut node, OTHERWISE);
    expect![[r#"
        temperature_celsius 42
        power_limit_watts{limit="enforced"} 200
        power_limit_watts{limit="default"} 300
        power_limit_watts{limit="min"} 100
        power_limit_watts{limit="max"} 400
    "#]]
    .assert_eq(&lines(&agent.cycles(1), SHOWN));
    expect![[r#"
        temperature_celsius 42
        memory_temperature_celsius 52
        power_limit_watts{limit="enforced"} 200
        power_limit_watts{limit="default"} 500
        power_limit_watts{limit="min"} 200
        power_limit_watts{limit="max"} 500
    "#]]
    .assert_eq(&lines(&reloaded(&mut node, &agent, OTHERWISE), SHOWN));
}

#[test]
fn a_counter_that_the_driver_begins_anew_is_believed() {
    let card = |errors: u64| {
        format!(
            "gpus: [{{ecc: {{mode: true, volatile: {{corrected: {{dram: {errors}}}}}}},
                nvlink: {{links: [true], crc_errors: {errors}}}}}]"
        )
    };
    const SHOWN: &[&str] = &["ecc_errors_total", "nvlink_errors_total"];
    let mut node = node(&card(5));
    let agent = node.start();
    expect![[r#"
        ecc_errors_total{type="corrected",location="dram"} 5
        nvlink_errors_total{type="crc"} 5
    "#]]
    .assert_eq(&lines(&agent.page(), SHOWN));
    expect![[r#"
        ecc_errors_total{type="corrected",location="dram"} 1
        nvlink_errors_total{type="crc"} 1
    "#]]
    .assert_eq(&lines(&reloaded(&mut node, &agent, &card(1)), SHOWN));
}

#[test]
fn a_group_that_is_switched_off_costs_no_call_and_has_no_series() {
    let mut node = Node::new(0);
    let mut full: Scenario = include_str!("scenarios/four-cards.yaml").parse().unwrap();
    full.gpus.truncate(1);
    full.gpus[0].uuid = None;
    full.gpus[0].processes.clear();
    node.change(|scenario| *scenario = full);
    let calls = [
        "nvmlDeviceGetClock*",
        "nvmlDeviceGetMaxClock*",
        "nvmlDeviceGetCurrentClock*",
        "nvmlDeviceGetSupportedClock*",
        "nvmlDeviceGetPerformanceState",
        "nvmlDeviceGetCurrPcie*",
        "nvmlDeviceGetMaxPcie*",
        "nvmlDeviceGetPcieReplay*",
        "nvmlDeviceGetPcieThroughput",
        "nvmlDeviceGetNvLink*",
        "nvmlDeviceGetGpuFabric*",
        "nvmlDeviceGetEcc*",
        "nvmlDeviceGetMemoryError*",
        "nvmlDeviceGetSram*",
        "nvmlDeviceGetRowRemapper*",
        "nvmlDeviceGetRemapped*",
        "nvmlDeviceGetVirtualization*",
    ];
    // Every number but the energy, the memory's temperature and the advice.
    let numbers = (1..=255).filter(|field| ![82, 83, 230].contains(field));
    node.change(|scenario| {
        scenario.errors = calls.map(|call| (call.into(), Error::UNKNOWN)).into();
        scenario.defaults.fields =
            numbers.map(|field| (field, nvml_sim::value::Value::Failing(Error::UNKNOWN))).collect();
    });
    node.configure("metrics: {clocks: false, pcie: false, nvlink: false, ecc: false}");
    let page = node.start().cycles(1);
    expect![[r#"
        temperature_celsius 66
        memory_temperature_celsius 43
        temperature_margin_celsius 53
        temperature_threshold_celsius{threshold="slowdown"} 89
        temperature_threshold_celsius{threshold="shutdown"} 92
        temperature_threshold_celsius{threshold="gpu_max"} 87
        temperature_threshold_celsius{threshold="memory_max"} 95
        power_watts 612
        power_limit_watts{limit="enforced"} 700
        power_limit_watts{limit="default"} 700
        power_limit_watts{limit="min"} 200
        power_limit_watts{limit="max"} 700
        energy_joules_total 1500000000
        memory_total_bytes 85520809984
        memory_used_bytes 0
        memory_free_bytes 84943044608
        memory_reserved_bytes 577765376
        recovery_action 0
    "#]]
    .assert_eq(&lines(&page, &everything()));
    assert_eq!(errors(&page), []);
}

#[test]
fn what_cannot_be_is_no_value() {
    check(
        "gpus: [{utilization: 101%, memory_utilization: 100%, encoder_utilization: 255%, decoder_utilization: 0%,
            jpeg_utilization: 101%, ofa_utilization: 101%, memory_temperature: 0, performance_state: 32,
            power: 4294967295mW, temperature: 4294967295,
            power_limits: {enforced: 0W, default: 0W, min: 0W, max: 300W}, clocks: {sm: 4294967295MHz},
            fields: {31: 7, 144: 2}, retired_pages: {pending: false}, remapped_rows: {pending: false, failure: true},
            pcie: {tx_total: 18446744073709551615, rx_total: 0}, memory: {total: 0}}]",
        &[everything().as_slice(), UTILIZATION].concat(),
        &expect![[r#"
            pcie_bytes_total{direction="rx"} 0
            retired_pages{cause="corrected"} 0
            retired_pages{cause="uncorrected"} 0
            remapped_rows{cause="corrected"} 0
            remapped_rows{cause="uncorrected"} 0
            row_remap_failure 1
            power_limit_watts{limit="max"} 300
            memory_controller_utilization_ratio 1
            decoder_utilization_ratio 0
        "#]],
    );
}

#[test]
fn a_card_that_shares_the_memory_of_the_host_has_none_of_its_own() {
    for scenario in [include_str!("scenarios/unified-memory.yaml"), include_str!("scenarios/zero-memory.yaml")] {
        let page = node(scenario).start().page();
        assert_eq!(lines(&page, MEMORY), "");
        assert_eq!(lines(&page, &["memory_unattributed_bytes"]), "");
        assert_eq!(errors(&page), []);
    }
}

#[test]
fn a_driver_before_r510_counts_reserved_memory_as_used_and_calls_reasons_otherwise() {
    let library = Library::old();
    let mut node = node(
        "driver: {version: 470.256.02, cuda: 11.4}
gpus: [{memory: {total: 80GiB, reserved: 1GiB, used: 10GiB}, temperature_margin: 30, clock_events: [sync_boost]}]",
    );
    node.library = library.0.path().join("libnvidia-ml.so.1");
    let page = node.start().page();
    expect![[r#"
        memory_total_bytes 85899345920
        memory_used_bytes 11811160064
        memory_free_bytes 74088185856
        clock_event_active{reason="gpu_idle"} 0
        clock_event_active{reason="applications_clocks_setting"} 0
        clock_event_active{reason="sw_power_cap"} 0
        clock_event_active{reason="hw_slowdown"} 0
        clock_event_active{reason="sync_boost"} 1
        clock_event_active{reason="sw_thermal_slowdown"} 0
        clock_event_active{reason="hw_thermal_slowdown"} 0
        clock_event_active{reason="hw_power_brake_slowdown"} 0
        clock_event_active{reason="display_clock_setting"} 0
    "#]]
    .assert_eq(&lines(&page, &[MEMORY, CLOCKS, TEMPERATURE].concat()));
    assert_eq!(errors(&page), []);
}

#[test]
fn nvidia_ml_py_is_told_the_same_numbers() {
    // It numbers its fields as drivers since 580.82 do.
    let node = node(&format!(
        "driver: {{version: 590.10, cuda: 13.1}}
gpus: [{{memory_temperature: 52, temperature_margin: -3, recovery_action: 2, energy: 123456J, fabric: {{state: 2}},
    clock_events: [gpu_idle, hw_power_brake_slowdown],
    clock_event_times: {{sw_power_cap: 1s, sync_boost: 2s, sw_thermal_slowdown: 3s, hw_thermal_slowdown: 4s,
                         hw_power_brake_slowdown: 5s}},
    pcie: {{replays: 7}}, nvlink: {{links: [true, false, true], replay_errors: 1, recovery_errors: 2, crc_errors: 3,
                                    tx_total: 1GiB, rx_total: 2GiB}}, {MEMORY_ERRORS}}}]"
    ));
    let ours = lines(&node.start().page(), &everything());
    let theirs = sees("nvidia_ml_py_values.py", &Library::new(), &node.scenario());
    let theirs: BTreeMap<String, f64> = serde_json::from_value(theirs).unwrap();
    let samples = ours.lines().map(|line| line.rsplit_once(' ').unwrap());
    let ours = samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    let ours: BTreeMap<String, f64> = ours.filter(|(name, _)| theirs.contains_key(name)).collect();
    assert_eq!(ours, theirs);
    assert!(theirs.len() > 40, "{}", theirs.len());
}

#[test]
fn a_card_bears_the_number_of_the_node_of_the_host_that_is_near() {
    // On coherent platforms the memory of the card is a node too: that is not it.
    let page = node("gpus: [{name: A, numa_node: 1, memory_node: 17}]").start().page();
    let numbers: Vec<_> = page.all("gpuwarden_gpu_info", &[]).map(|card| card.labels["numa_node"].clone()).collect();
    assert_eq!(numbers, ["1"]);
}
