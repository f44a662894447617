//! Job databases of clients and workers.
