//! The service as its clients see it: recorded jobs of the Python service, hostile URLs, and transfers.

mod containment;
mod recorded;
mod start;
mod taking;
mod transfer;
mod tree;
