//! Fabrics of Python peers and ours in every mixture. One binary, so that it is linked once.

mod command_line;
mod files;
mod hostile;
mod life;
mod listing;
mod mixed;
mod reference;
mod services;
mod shapes;
