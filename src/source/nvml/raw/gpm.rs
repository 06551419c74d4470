//! GPM samples that outlive a cycle. The wrapper's borrow the `Nvml`, which the session hands from cycle to cycle.

use std::mem;
use std::ptr;

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{NVML_GPM_METRICS_GET_VERSION, nvmlGpmMetricsGet_t, nvmlGpmSample_t};

/// A buffer of the library for one sample (`nvmlGpmSampleAlloc`). It goes back by [`free`](Self::free), which wants the
/// library, so that no destructor can do it: a library that is loaded again knows nothing of the samples of the one
/// before, and must not be given them. To drop one is to forget it.
#[derive(Debug)]
pub struct Sample(nvmlGpmSample_t);

// SAFETY: NVML is thread-safe, and the sample is an address that only the library looks behind.
unsafe impl Send for Sample {}

impl Sample {
    pub fn allocate(nvml: &Nvml) -> Result<Self, NvmlError> {
        let call = nvml_sym(nvml.lib().nvmlGpmSampleAlloc.as_ref())?;
        let mut sample = ptr::null_mut();
        // SAFETY: the function writes one pointer.
        nvml_try(unsafe { call(&mut sample) })?;
        Ok(Self(sample))
    }

    /// Gives it back to the library that it came from.
    pub fn free(self, nvml: &Nvml) -> Result<(), NvmlError> {
        let call = nvml_sym(nvml.lib().nvmlGpmSampleFree.as_ref())?;
        // SAFETY: it was allocated by this library in this session, and as it is consumed here, it is freed once.
        nvml_try(unsafe { call(self.0) })
    }

    /// Counters of a card (`nvmlGpmSampleGet`).
    pub fn take(&mut self, nvml: &Nvml, card: &Device) -> Result<(), NvmlError> {
        let call = nvml_sym(nvml.lib().nvmlGpmSampleGet.as_ref())?;
        // SAFETY: handle and sample belong to this library.
        nvml_try(unsafe { call(card.handle(), self.0) })
    }

    /// Counters of a GPU instance; the handle is that of its card (`nvmlGpmMigSampleGet`).
    pub fn take_of_instance(&mut self, nvml: &Nvml, card: &Device, gpu_instance: u32) -> Result<(), NvmlError> {
        let call = nvml_sym(nvml.lib().nvmlGpmMigSampleGet.as_ref())?;
        // SAFETY: as above.
        nvml_try(unsafe { call(card.handle(), gpu_instance, self.0) })
    }
}

/// What happened between two samples, metric by metric in their own units (`nvmlGpmMetricsGet`); `None` where the driver
/// gives an error for one of them.
pub fn metrics(
    nvml: &Nvml,
    before: &Sample,
    after: &Sample,
    wanted: &[GpmMetricId],
) -> Result<Vec<Option<f64>>, NvmlError> {
    let call = nvml_sym(nvml.lib().nvmlGpmMetricsGet.as_ref())?;
    // SAFETY: numbers and pointers, for which all zeros is a value.
    let mut asked: nvmlGpmMetricsGet_t = unsafe { mem::zeroed() };
    (asked.sample1, asked.sample2) = (before.0, after.0);
    asked.version = NVML_GPM_METRICS_GET_VERSION;
    asked.numMetrics = wanted.len().min(asked.metrics.len()) as u32;
    for (metric, wanted) in asked.metrics.iter_mut().zip(wanted) {
        metric.metricId = wanted.as_c();
    }
    // SAFETY: both samples belong to this library; the function reads and writes the first `numMetrics` of the metrics.
    nvml_try(unsafe { call(&mut asked) })?;
    let told = asked.metrics.iter().take(wanted.len());
    Ok(told.map(|metric| nvml_try(metric.nvmlReturn).ok().map(|()| metric.value)).collect())
}
