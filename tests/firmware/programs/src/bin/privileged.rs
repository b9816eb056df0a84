//! See [`fault_programs::Fault::Privileged`].
#![no_std]
#![no_main]
#![allow(unsafe_code)] // a program's entry

fault_programs::program!(0, Privileged);
