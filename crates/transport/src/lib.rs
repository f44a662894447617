//! ZeroMQ links with CURVE, each owned by exactly one loop.
