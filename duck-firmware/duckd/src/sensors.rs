//! How warm the processor is, and whether it was slowed down for that.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Files of the kernel's, opened once.
#[derive(Debug, Default)]
pub(crate) struct Sensors {
    temperatures: Vec<File>,
    /// Of each processor, and of the package that it is in, which all its processors repeat.
    throttles: Vec<File>,
    packages: Vec<File>,
}

/// Names under which processors report: Intel's and AMD's.
const CHIPS: [&str; 4] = ["coretemp", "k10temp", "x86_pkg_temp", "cpu_thermal"];

impl Sensors {
    /// What there is below `sys`, normally `/sys`.
    pub fn new(sys: &Path) -> Sensors {
        let named = |folder: &Path, file: &str| {
            let name = fs::read_to_string(folder.join(file)).unwrap_or_default();
            CHIPS.contains(&name.trim())
        };
        let mut sensors = Sensors::default();
        for chip in folders(&sys.join("class/hwmon")).filter(|f| named(f, "name")) {
            let inputs = folders(&chip).filter(|f| {
                let name = f.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("temp") && name.ends_with("_input")
            });
            sensors.temperatures.extend(inputs.filter_map(|f| File::open(f).ok()));
        }
        if sensors.temperatures.is_empty() {
            let zones = folders(&sys.join("class/thermal")).filter(|f| named(f, "type"));
            sensors.temperatures.extend(zones.filter_map(|f| File::open(f.join("temp")).ok()));
        }
        for processor in folders(&sys.join("devices/system/cpu")) {
            let open = |count| File::open(processor.join("thermal_throttle").join(count)).ok();
            sensors.throttles.extend(open("core_throttle_count"));
            sensors.packages.extend(open("package_throttle_count"));
        }
        sensors
    }

    /// The warmest, in thousandths of a degree; 0 if nobody knows.
    pub fn temperature(&self) -> u64 {
        self.temperatures.iter().filter_map(number).max().unwrap_or(0)
    }

    /// How often processors were slowed down, all together.
    pub fn throttled(&self) -> u64 {
        let package = self.packages.iter().filter_map(number).max().unwrap_or(0);
        self.throttles.iter().filter_map(number).sum::<u64>().saturating_add(package)
    }
}

fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut all: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    all.sort();
    all.into_iter()
}

/// What a file of one number says.
fn number(file: &File) -> Option<u64> {
    let mut text = [0; 24];
    let len = file.read_at(&mut text, 0).ok()?;
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn the_processors_warmest_sensor_counts_and_throttling_adds_up() {
        let root = tempfile::tempdir().expect("a folder");
        assert_eq!((Sensors::new(root.path()).temperature(), Sensors::new(root.path()).throttled()), (0, 0));
        for (file, text) in [
            ("class/hwmon/hwmon0/name", "nvme\n"),
            ("class/hwmon/hwmon0/temp1_input", "99000\n"),
            ("class/hwmon/hwmon1/name", "coretemp\n"),
            ("class/hwmon/hwmon1/temp1_input", "41000\n"),
            ("class/hwmon/hwmon1/temp2_input", "47500\n"),
            ("class/hwmon/hwmon1/temp2_max", "105000\n"),
            ("devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n"),
            ("devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4\n"),
        ] {
            write(root.path(), file, text);
        }
        let sensors = Sensors::new(root.path());
        assert_eq!((sensors.temperature(), sensors.throttled()), (47_500, 7));
        write(root.path(), "class/hwmon/hwmon1/temp1_input", "50000\n");
        assert_eq!(sensors.temperature(), 50_000, "read afresh");
    }

    #[test]
    fn thermal_zones_serve_where_there_is_no_chip() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "class/thermal/thermal_zone0/type", "acpitz\n");
        write(root.path(), "class/thermal/thermal_zone0/temp", "20000\n");
        write(root.path(), "class/thermal/thermal_zone1/type", "x86_pkg_temp\n");
        write(root.path(), "class/thermal/thermal_zone1/temp", "61000\n");
        assert_eq!(Sensors::new(root.path()).temperature(), 61_000);
    }
}
