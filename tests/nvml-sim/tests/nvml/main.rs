//! The simulated driver through its C interface.

mod sim;
#[cfg(not(feature = "old-driver"))]
mod wrapper;
#[cfg(not(feature = "old-driver"))]
mod abi;
#[cfg(feature = "old-driver")]
mod old_driver;
