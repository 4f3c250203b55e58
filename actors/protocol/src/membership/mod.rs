//! Who is there: how the founding view forms, and what nodes must agree on before they may meet.

pub mod settings;
