"""What nvidia-ml-py is told, as JSON."""

import json
import sys

import pynvml as nvml


def asked(question, *arguments, **named):
    try:
        return question(*arguments, **named)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_Unknown):
        return None


def processes(card):
    listed = []
    for question in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        listed += asked(question, card) or []
    return {process.pid: process.usedGpuMemory for process in listed}


def gpu(index):
    try:
        card = nvml.nvmlDeviceGetHandleByIndex(index)
    except nvml.NVMLError_GpuIsLost:
        return {"lost": True}
    memory = asked(nvml.nvmlDeviceGetMemoryInfo, card, version=nvml.nvmlMemory_v2)
    rates = asked(nvml.nvmlDeviceGetUtilizationRates, card)
    power = asked(nvml.nvmlDeviceGetPowerUsage, card)
    return {
        "name": nvml.nvmlDeviceGetName(card),
        "uuid": nvml.nvmlDeviceGetUUID(card),
        "memory_total": memory and memory.total,
        "memory_used": memory and memory.used,
        "utilization": rates and rates.gpu,
        "temperature": asked(nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
        "power": power and power // 1000,
        "processes": processes(card),
    }


nvml.nvmlInit()
json.dump([gpu(index) for index in range(nvml.nvmlDeviceGetCount())], sys.stdout)
nvml.nvmlShutdown()
