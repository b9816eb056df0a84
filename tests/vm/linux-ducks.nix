# A host and two ducks that keep Linux, on one vlan. Never run; see default.nix.
{
  lib,
  pkgs,
  modules,
  packages,
}: let
  nodes = import ./nodes.nix {inherit lib modules packages;};
in {
  name = "duckpond-linux-ducks";
  nodes = {
    host = nodes.host {
      vlans = [1];
      firmware = false;
      ducks = map (name: {
        inherit name;
        port = "port1";
      }) ["one" "two"];
    };
    one = nodes.linux {
      vlan = 1;
      name = "one";
    };
    two = nodes.linux {
      vlan = 1;
      name = "two";
    };
  };

  testScript = ''
    start_all()
    one.wait_for_unit("duckd.service")
    two.wait_for_unit("duckd.service")
    host.wait_for_unit("duckpond.service")
    question = (
        "curl --fail --silent ${nodes.api}/v1/chat/completions -H 'content-type: application/json' "
        "-d '{\"messages\": [{\"role\": \"user\", \"content\": \"Is 9967 prime?\"}]}'"
    )
    first = host.succeed(question)
    assert "prime" in first, first

    with subtest("ducks outlive the engine, and their weights stay"):
        host.succeed("systemctl restart duckpond.service")
        host.wait_for_unit("duckpond.service")
        host.succeed(question)

    with subtest("a duck that is killed comes back"):
        one.succeed("systemctl kill --signal=KILL duckd.service")
        host.succeed(question)
        one.wait_for_unit("duckd.service")

    for machine in [host, one, two]:
        machine.succeed("test -z \"$(systemctl --failed --no-legend)\"")
  '';
}
