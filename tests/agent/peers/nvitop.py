"""What nvitop shows, as JSON."""

import json
import sys

from nvitop import NA, Device


def known(value):
    return None if value is NA else value


def gpu(card):
    if card.name() == "ERROR: GPU is Lost" or card.handle is None:
        return {"lost": True}
    power = known(card.power_usage())
    return {
        "name": card.name(),
        "uuid": card.uuid(),
        "memory_total": known(card.memory_total()),
        "memory_used": known(card.memory_used()),
        "utilization": known(card.gpu_utilization()),
        "temperature": known(card.temperature()),
        "power": power and power // 1000,
        "processes": {pid: known(process.gpu_memory()) for pid, process in card.processes().items()},
    }


json.dump([gpu(card) for card in Device.all()], sys.stdout)
