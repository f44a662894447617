//! Fabrics of Python peers and ours in every mixture. One binary, so that it is linked once.

mod reference;
mod services;
