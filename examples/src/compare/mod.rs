//! The comparison of algorithms on the digits.
