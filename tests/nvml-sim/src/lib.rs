//! A simulated NVIDIA driver.
