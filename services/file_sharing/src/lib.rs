//! The filesharing service: listing, details and streaming of files.
