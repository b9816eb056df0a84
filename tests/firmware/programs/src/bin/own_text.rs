//! See [`fault_programs::Fault::OwnText`].
#![no_std]
#![no_main]
#![allow(unsafe_code)] // a program's entry

fault_programs::program!(0, OwnText);
