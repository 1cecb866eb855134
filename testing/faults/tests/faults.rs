//! Runs the fault runs, or those whose names its arguments ask for, as any test binary does.

fn main() -> std::process::ExitCode {
    holdline_faults::main()
}
