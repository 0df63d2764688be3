//! What tests are built from: plain fixtures, and generators of things nobody would write.

#[cfg(test)]
pub mod arbitrary;
pub mod fixtures;
