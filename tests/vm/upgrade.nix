# A new supervisor and new kernels, rolled through a flock of two while it answers. Never run; see default.nix.
{
  lib,
  pkgs,
  modules,
  packages,
}: let
  nodes = import ./nodes.nix {inherit lib modules packages;};
  mac = n: "02:00:00:00:00:0${toString n}";
  # Another program of the same make: a section that nothing reads makes it other bytes, and so another digest.
  newer = pkgs.runCommand "duck-firmware-newer" {} ''
    mkdir -p $out/share/duckpond
    for program in nest fp9_kernels; do
      cp ${packages.duck-firmware}/share/duckpond/$program.elf $out/share/duckpond/
      chmod u+w $out/share/duckpond/$program.elf
      printf newer >> $out/share/duckpond/$program.elf
      chmod 0444 $out/share/duckpond/$program.elf
    done
  '';
  host = package: {
    imports = [
      (nodes.host {
        vlans = [1];
        firmware = true;
        ducks = map (n: {
          name = "duck-0${toString n}";
          port = "port1";
          mac = mac n;
          address = "10.21.1.${toString (10 + n)}";
        }) [1 2];
      })
    ];
    services.duckpond.firmware.package = lib.mkForce package;
  };
in {
  name = "duckpond-upgrade";
  nodes = {
    host = host packages.duck-firmware;
    # Never started: its system is switched to on the host.
    upgraded = host newer;
    duck1 = nodes.bare {
      vlan = 1;
      mac = mac 1;
    };
    duck2 = nodes.bare {
      vlan = 1;
      mac = mac 2;
    };
  };

  testScript = {nodes, ...}: ''
    host.start()
    duck1.start()
    duck2.start()
    host.wait_for_unit("duckpond.service")
    before = host.succeed("sha256sum < /var/lib/duckpond/kernels/fp9_kernels.elf")

    host.succeed("${nodes.upgraded.system.build.toplevel}/bin/switch-to-configuration test")
    host.wait_for_unit("duckpond.service")
    after = host.succeed("sha256sum < /var/lib/duckpond/kernels/fp9_kernels.elf")
    assert before != after, "the kernels are the same"

    with subtest("one duck after the other boots the new supervisor, while the pond answers"):
        for n in [1, 2]:
            host.succeed(f"duckpond ducks reset --pond /etc/duckpond/pond.json duck-0{n}")
            host.succeed(
                "curl --fail --silent http://127.0.0.1:8080/v1/chat/completions "
                "-H 'content-type: application/json' "
                "-d '{\"messages\": [{\"role\": \"user\", \"content\": \"Is 9967 prime?\"}]}'"
            )
            host.wait_until_succeeds(
                "duckpond ducks --pond /etc/duckpond/pond.json --json | "
                f"jq -e '.ducks[] | select(.name == \"duck-0{n}\") | .state == \"ready\"'",
                timeout=300,
            )
  '';
}
