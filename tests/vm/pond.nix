# A host with four vlans and a duck without an operating system on each. Never run; see default.nix.
#
#         host
#   eth1 eth2 eth3 eth4
#     |    |    |    |      vlans 1 to 4, 10.21.N.0/24
#   duck1 duck2 duck3 duck4
{
  lib,
  pkgs,
  modules,
  packages,
}: let
  nodes = import ./nodes.nix {inherit lib modules packages;};
  vlans = [
    1
    2
    3
    4
  ];
  mac = n: "02:00:00:00:00:0${toString n}";
in {
  name = "duckpond-pond";
  nodes =
    {
      host = nodes.host {
        inherit vlans;
        firmware = true;
        ducks =
          map (n: {
            name = "duck-0${toString n}";
            port = "port${toString n}";
            mac = mac n;
            address = "10.21.${toString n}.11";
          })
          vlans;
      };
    }
    // lib.listToAttrs (
      map (
        n:
          lib.nameValuePair "duck${toString n}" (
            nodes.bare {
              vlan = n;
              mac = mac n;
            }
          )
      )
      vlans
    );

  testScript = ''
    import json

    def ducks():
        status = host.succeed("duckpond ducks --pond /etc/duckpond/pond.json --json")
        return {duck["name"]: duck["state"] for duck in json.loads(status)["ducks"]}

    def answer(prompt):
        body = json.dumps({"messages": [{"role": "user", "content": prompt}]})
        reply = host.succeed(
            "curl --fail --silent ${nodes.api}/v1/chat/completions "
            f"-H 'content-type: application/json' -d '{body}'"
        )
        return json.loads(reply)["choices"][0]["message"]["content"]

    host.start()
    host.wait_for_unit("duckpond.service")

    with subtest("the engine is a service that is watched and may lock memory"):
        properties = host.succeed("systemctl show duckpond -p Type,WatchdogUSec,LimitMEMLOCK")
        assert "Type=notify" in properties, properties
        assert "WatchdogUSec=1min" in properties, properties
        assert "LimitMEMLOCK=infinity" in properties, properties

    with subtest("the kernels were signed when the system was activated"):
        host.succeed("test -s /var/lib/duckpond/kernels/fp9_kernels.elf.sig")

    start_all()
    with subtest("ducks boot from their pond and announce themselves"):
        for n in range(1, 5):
            host.wait_until_succeeds(
                f"duckpond ducks --pond /etc/duckpond/pond.json --json | grep -q 'duck-0{n}'", timeout=300
            )

    with subtest("the pond answers"):
        assert "1801" in answer("What is 1234 + 567?")

    with subtest("a duck without power costs time, not the answer"):
        duck2.crash()
        assert "1801" in answer("What is 1234 + 567?")
        assert ducks()["duck-02"] != "ready"

    with subtest("it comes back by itself"):
        duck2.start()
        host.wait_until_succeeds(
            "duckpond ducks --pond /etc/duckpond/pond.json --json | "
            "jq -e '.ducks[] | select(.name == \"duck-02\") | .state == \"ready\"'",
            timeout=300,
        )
        assert "1801" in answer("What is 1234 + 567?")

    with subtest("nothing failed"):
        host.succeed("test -z \"$(systemctl --failed --no-legend)\"")
  '';
}
