"""Every value that nvitop shows of cards and their processes, by its own names, as JSON."""

import json
import sys
import time

from nvitop import NA, Device

CARD = """name uuid serial bus_id driver_version cuda_driver_version memory_total memory_used memory_free gpu_utilization
memory_utilization encoder_utilization decoder_utilization temperature fan_speed power_usage power_limit performance_state
persistence_mode compute_mode mig_mode total_volatile_uncorrected_ecc_errors pcie_tx_throughput pcie_rx_throughput""".split()
PROCESS = """gpu_memory type gpu_sm_utilization gpu_memory_utilization gpu_encoder_utilization gpu_decoder_utilization
username host_memory create_time name""".split()


def known(value):
    return None if value is NA else value() if callable(value) else value


def shown(subject, names):
    values = {name: known(getattr(subject, name)) for name in names}
    return {name: None if value is NA else value for name, value in values.items()}


def process(pid, process):
    process.update_gpu_status()
    return {"pid": str(pid), **shown(process, PROCESS)}


def card(card):
    values = shown(card, CARD)
    for kind, clocks in (("clock", card.clock_infos()), ("max_clock", card.max_clock_infos())):
        values.update({f"{kind}_{name}": known(clock) for name, clock in clocks._asdict().items()})
    capability = known(card.cuda_compute_capability())
    values["compute_capability"] = capability and ".".join(map(str, capability))
    values["processes"] = [process(pid, it) for pid, it in card.processes().items()]
    return values


cards = Device.all()
# The first question about processes only tells nvitop where the samples end.
for each in cards:
    each.processes()
time.sleep(1)
json.dump([card(each) for each in cards], sys.stdout)
