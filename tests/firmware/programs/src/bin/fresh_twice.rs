//! See [`fault_programs::Fault::FreshTwice`].
#![no_std]
#![no_main]
#![allow(unsafe_code)] // a program's entry

fault_programs::program!(0, FreshTwice);
