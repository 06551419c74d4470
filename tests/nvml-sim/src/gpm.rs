//! GPU performance monitoring: what the units of a card did between two samples.

use crate::call::{Answer, Device, calls, device_calls};
use crate::pointer::Out;
use crate::record;
use crate::registry::Registry;
use crate::value::Error;
use nvml_wrapper_sys::bindings::*;
use std::collections::BTreeMap;
use std::ffi::c_uint;

/// The metrics at the moment of a sample; none before it was taken.
type Sample = Option<BTreeMap<u32, f64>>;

static SAMPLES: Registry<Sample> = Registry::new();

calls! {
    nvmlGpmSampleAlloc(driver, sample: Out<nvmlGpmSample_t>) {
        sample.check()?;
        if driver.scenario.gpm_samples.is_some_and(|room| SAMPLES.len() >= room) {
            return Err(Error::MEMORY);
        }
        sample.set(SAMPLES.add(None))
    }

    nvmlGpmSampleFree(_driver, sample: nvmlGpmSample_t) {
        SAMPLES.remove(sample).map(|_| ())
    }

    // The activity between two samples is that of the second: the scenario is so until it changes.
    nvmlGpmMetricsGet(_driver, metrics: Out<nvmlGpmMetricsGet_t>) {
        let mut asked = metrics.value()?;
        if asked.version != NVML_GPM_METRICS_GET_VERSION {
            return Err(Error::ARGUMENT_VERSION_MISMATCH);
        }
        taken(asked.sample1)?;
        let known = taken(asked.sample2)?;
        let wanted = asked.metrics.get_mut(..asked.numMetrics as usize).ok_or(Error::INVALID_ARGUMENT)?;
        record::asked(wanted.iter().map(|metric| metric.metricId));
        for metric in wanted {
            let value = known.get(&metric.metricId).copied().ok_or(Error::NOT_SUPPORTED);
            metric.nvmlReturn = value.map_or_else(|error| error.0, |_| nvmlReturn_enum_NVML_SUCCESS);
            metric.value = value.unwrap_or(f64::NAN);
        }
        metrics.set(asked)
    }
}

device_calls! {
    nvmlGpmSampleGet(device, sample: nvmlGpmSample_t) {
        take(sample, device.gpm.known()?)
    }

    nvmlGpmMigSampleGet(device, gpu_instance: c_uint, sample: nvmlGpmSample_t) {
        let instances = &device.mig.known()?.instances;
        let instance = instances.iter().find(|instance| instance.gpu_instance == gpu_instance);
        take(sample, instance.ok_or(Error::INVALID_ARGUMENT)?.gpm.known()?)
    }

    nvmlGpmQueryDeviceSupport(device, support: Out<nvmlGpmSupport_t>) {
        let asked = support.value()?;
        if asked.version != NVML_GPM_SUPPORT_VERSION {
            return Err(Error::ARGUMENT_VERSION_MISMATCH);
        }
        support.set(nvmlGpmSupport_t { isSupportedDevice: supported(device).into(), ..asked })
    }
}

fn supported(device: &Device) -> bool {
    let by_instance =
        || device.mig.known().is_ok_and(|mig| mig.instances.iter().any(|instance| instance.gpm.known().is_ok()));
    device.gpm.known().is_ok() || by_instance()
}

fn take(sample: nvmlGpmSample_t, metrics: &BTreeMap<u32, f64>) -> Answer {
    SAMPLES.with(sample, |sample| *sample = Some(metrics.clone()))
}

fn taken(sample: nvmlGpmSample_t) -> Result<BTreeMap<u32, f64>, Error> {
    SAMPLES.with(sample, |sample| sample.clone())?.ok_or(Error::INVALID_ARGUMENT)
}
