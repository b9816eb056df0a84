//! See [`fault_programs::Fault::WritableView`].
#![no_std]
#![no_main]
#![allow(unsafe_code)] // a program's entry

fault_programs::program!(0, WritableView);
