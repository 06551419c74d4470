//! The one integration binary: the real program on a simulated node.

mod architecture;
mod check;
mod shipped;
mod peers;
