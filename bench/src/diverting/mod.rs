//! `diverting`: what it costs to send some of a user's packets another way.

pub mod ul_cl;
