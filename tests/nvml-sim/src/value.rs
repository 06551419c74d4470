//! What a scenario says of one value: nothing, the value, or the error that asking for it brings.

use nvml_wrapper_sys::bindings::*;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::CStr;

/// A value of a GPU. Left out of the scenario, it is `NOT_SUPPORTED`; `{error: NAME}` is that error.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value<T> {
    #[default]
    LeftOut,
    Known(T),
    Failing(Error),
}

impl<T: Clone> Value<T> {
    /// The value in the type that NVML has for it.
    pub fn get<N>(&self) -> Result<N, Error>
    where
        T: Into<N>,
    {
        self.known().cloned().map(Into::into)
    }

    pub fn known(&self) -> Result<&T, Error> {
        match self {
            Value::Known(value) => Ok(value),
            Value::LeftOut => Err(Error::NOT_SUPPORTED),
            Value::Failing(error) => Err(*error),
        }
    }

    /// This value; where it is left out, another.
    pub fn or(self, other: Self) -> Self {
        if matches!(self, Value::LeftOut) { other } else { self }
    }
}

impl<T> From<T> for Value<T> {
    fn from(value: T) -> Self {
        Value::Known(value)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failing {
    error: Error,
}

impl<T: Serialize> Serialize for Value<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::LeftOut => serializer.serialize_none(),
            Value::Known(value) => value.serialize(serializer),
            Value::Failing(error) => Failing { error: *error }.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Value<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = serde_yaml::Value::deserialize(deserializer)?;
        if written.is_null() {
            Ok(Value::LeftOut)
        } else if is_failing(&written) {
            Failing::deserialize(written).map(|failing| Value::Failing(failing.error)).map_err(D::Error::custom)
        } else {
            T::deserialize(written).map(Value::Known).map_err(D::Error::custom)
        }
    }
}

/// Is this the `{error: NAME}` form?
pub fn is_failing(written: &serde_yaml::Value) -> bool {
    written.get("error").is_some()
}

/// An NVML error, written in a scenario as its name without `NVML_ERROR_`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub nvmlReturn_t);

macro_rules! errors {
    ($($name:ident = $code:ident: $text:literal,)*) => {
        impl Error {
            $(pub const $name: Error = Error($code);)*

            /// Name, error, and the sentence of `nvmlErrorString`.
            const ALL: &[(&str, Error, &CStr)] = &[$((stringify!($name), Error::$name, $text),)*];
        }
    };
}

errors! {
    UNINITIALIZED = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED: c"Uninitialized",
    INVALID_ARGUMENT = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT: c"Invalid Argument",
    NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED: c"Not Supported",
    NO_PERMISSION = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION: c"Insufficient Permissions",
    ALREADY_INITIALIZED = nvmlReturn_enum_NVML_ERROR_ALREADY_INITIALIZED: c"Already Initialized",
    NOT_FOUND = nvmlReturn_enum_NVML_ERROR_NOT_FOUND: c"Not Found",
    INSUFFICIENT_SIZE = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE: c"Insufficient Size",
    INSUFFICIENT_POWER = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_POWER: c"Insufficient External Power",
    DRIVER_NOT_LOADED = nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED: c"Driver Not Loaded",
    TIMEOUT = nvmlReturn_enum_NVML_ERROR_TIMEOUT: c"Timeout",
    IRQ_ISSUE = nvmlReturn_enum_NVML_ERROR_IRQ_ISSUE: c"Interrupt Request Issue",
    LIBRARY_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_LIBRARY_NOT_FOUND: c"NVML Shared Library Not Found",
    FUNCTION_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND: c"Function Not Found",
    CORRUPTED_INFOROM = nvmlReturn_enum_NVML_ERROR_CORRUPTED_INFOROM: c"Corrupted infoROM",
    GPU_IS_LOST = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST: c"GPU is lost",
    RESET_REQUIRED = nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED: c"GPU requires reset",
    OPERATING_SYSTEM = nvmlReturn_enum_NVML_ERROR_OPERATING_SYSTEM: c"The operating system has blocked the request.",
    LIB_RM_VERSION_MISMATCH =
        nvmlReturn_enum_NVML_ERROR_LIB_RM_VERSION_MISMATCH: c"RM has detected an NVML/RM version mismatch.",
    IN_USE = nvmlReturn_enum_NVML_ERROR_IN_USE: c"In use by another client",
    MEMORY = nvmlReturn_enum_NVML_ERROR_MEMORY: c"Insufficient Memory",
    NO_DATA = nvmlReturn_enum_NVML_ERROR_NO_DATA: c"No data",
    VGPU_ECC_NOT_SUPPORTED =
        nvmlReturn_enum_NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: c"Operation not allowed on the vGPU with ECC enabled",
    INSUFFICIENT_RESOURCES = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES: c"Insufficient Resources",
    FREQ_NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_FREQ_NOT_SUPPORTED: c"Requested Frequency is not supported",
    ARGUMENT_VERSION_MISMATCH =
        nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH: c"The provided version is invalid/unsupported",
    DEPRECATED = nvmlReturn_enum_NVML_ERROR_DEPRECATED: c"The requested functionality has been deprecated",
    NOT_READY = nvmlReturn_enum_NVML_ERROR_NOT_READY: c"The system is not ready for the request",
    GPU_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_GPU_NOT_FOUND: c"No GPUs were found",
    INVALID_STATE = nvmlReturn_enum_NVML_ERROR_INVALID_STATE: c"Invalid state",
    UNKNOWN = nvmlReturn_enum_NVML_ERROR_UNKNOWN: c"Unknown Error",
}

impl Error {
    /// The sentence of `nvmlErrorString`.
    pub fn sentence(code: nvmlReturn_t) -> &'static CStr {
        if code == nvmlReturn_enum_NVML_SUCCESS {
            return c"The operation was successful";
        }
        let known = Self::ALL.iter().find(|(_, error, _)| error.0 == code);
        known.map_or(c"Unknown Error code", |(_, _, sentence)| *sentence)
    }
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match Self::ALL.iter().find(|(_, error, _)| error == self) {
            Some((name, ..)) => serializer.serialize_str(name),
            None => serializer.serialize_u32(self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = String::deserialize(deserializer)?;
        let found = Self::ALL.iter().find(|(name, ..)| *name == written).map(|(_, error, _)| *error);
        found.ok_or_else(|| D::Error::custom(format!("`{written}` is no NVML error such as NOT_SUPPORTED or UNKNOWN")))
    }
}
