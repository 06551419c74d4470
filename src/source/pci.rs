//! The PCI bus: how many cards the driver should show.

use std::fs;
use std::path::Path;

/// Where the kernel lists the devices of the bus.
pub const DEVICES: &str = "/sys/bus/pci/devices";

/// NVIDIA's display controllers that are the driver's to show: one that was handed to a virtual machine is not. `None`
/// where the bus cannot be read.
pub fn cards(devices: &Path) -> Option<u32> {
    let cards = fs::read_dir(devices).ok()?.flatten().filter(|device| is_card(&device.path()));
    u32::try_from(cards.count()).ok()
}

fn is_card(device: &Path) -> bool {
    let attribute = |name| fs::read_to_string(device.join(name)).map(|text| text.trim().to_owned());
    let nvidia = attribute("vendor").is_ok_and(|vendor| vendor == "0x10de");
    // VGA controllers and 3D controllers, the first four digits of six.
    let display = attribute("class").is_ok_and(|class| class.starts_with("0x0300") || class.starts_with("0x0302"));
    let others = fs::read_link(device.join("driver")).is_ok_and(|driver| !driver.ends_with("nvidia"));
    nvidia && display && !others
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_the_display_controllers_that_no_other_driver_has() {
        let bus = tempfile::tempdir().unwrap();
        let device = |place: &str, vendor: &str, class: &str, driver: Option<&str>| {
            let path = bus.path().join(place);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(path.join("class"), format!("{class}\n")).unwrap();
            if let Some(driver) = driver {
                std::os::unix::fs::symlink(format!("../drivers/{driver}"), path.join("driver")).unwrap();
            }
        };
        device("0000:17:00.0", "0x10de", "0x030200", Some("nvidia"));
        device("0000:65:00.0", "0x10de", "0x030000", None);
        device("0000:65:00.1", "0x10de", "0x040300", Some("snd_hda_intel"));
        device("0000:ca:00.0", "0x10de", "0x030200", Some("vfio-pci"));
        device("0000:00:02.0", "0x8086", "0x030000", Some("i915"));
        assert_eq!(cards(bus.path()), Some(2));
        assert_eq!(cards(&bus.path().join("none")), None);
    }
}
