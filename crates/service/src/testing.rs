//! Runs tasks without a fabric: for the tests of services.
