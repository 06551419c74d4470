"""What `gpustat --json` shows, as JSON in the shape of the others."""

import json
import subprocess
import sys


def bytes_of(mebibytes):
    return None if mebibytes is None else mebibytes << 20


def gpu(card):
    if "uuid" not in card:
        return {"lost": True}
    return {
        "name": card["name"],
        "uuid": card["uuid"],
        "memory_total": bytes_of(card["memory.total"]),
        "memory_used": bytes_of(card["memory.used"]),
        "utilization": card["utilization.gpu"],
        "temperature": card["temperature.gpu"],
        "power": card["power.draw"],
        "processes": {process["pid"]: bytes_of(process["gpu_memory_usage"]) for process in card["processes"] or []},
    }


shown = subprocess.check_output([sys.executable, "-I", "-m", "gpustat", "--json"], timeout=60)
json.dump([gpu(card) for card in json.loads(shown)["gpus"]], sys.stdout)
