# Unit tests of the modules: what options come to, without building anything. Empty where all hold, else a list of those that do not
# (lib.runTests). The description's own rules are tested beside the engine's, on the same files (tests/ponds).
{
  lib,
  pkgs,
  modules,
}: let
  base = {
    networking.hostName = "box";
    nixpkgs.hostPlatform = "x86_64-linux";
    system.stateVersion = "26.05";
  };
  evaluate = module:
    (lib.nixosSystem {
      system = "x86_64-linux";
      modules =
        modules
        ++ [
          base
          module
        ];
    })
    .config;
  engine = settings: evaluate {services.duckpond = {enable = true;} // settings;};
  failed = config: map (a: a.message) (lib.filter (a: !a.assertion) config.assertions);
  # Whether some failed assertion's message names an option.
  complains = option: config: lib.any (lib.hasInfix option) (failed config);
  throws = value: !(builtins.tryEval (builtins.deepSeq value value)).success;

  port = i: {
    name = "port${toString i}";
    pci = "0000:01:00.${toString i}";
    lcore = 2 * (i + 1);
    subnet = "10.21.${toString (i + 1)}.0/24";
  };
  pond = {
    ports = map port [
      0
      1
    ];
    keyFile = "/var/lib/duckpond/pond.key";
    iommu = "intel";
    firmware.package = null;
  };
  exec = config: config.systemd.services.duckpond.serviceConfig.ExecStart;
  pigeon = engine {
    pond = import ../../hosts/pigeon/pond.nix;
    iommu = "intel";
  };
in
  lib.runTests {
    testNothingWithoutEnable = {
      expr = lib.attrNames (evaluate {}).systemd.services;
      expected = [];
    };
    testEngineAloneHasNoPond = {
      expr = lib.hasInfix "--pond" (exec (engine {}));
      expected = false;
    };
    testEngineAloneIsConsistent = {
      expr = failed (engine {});
      expected = [];
    };
    testEngineAloneSetsNothingAside = {
      expr = (engine {}).boot.kernelParams;
      expected = [];
    };
    testModelIsAnArgument = {
      expr = lib.hasInfix ''"--model" "/models/v32"'' (exec (engine {
        model = "/models/v32";
      }));
      expected = true;
    };
    testExtraFlagsComeLast = {
      expr = lib.hasSuffix ''"--numerics" "bf16"'' (exec (engine {
        extraFlags = [
          "--numerics"
          "bf16"
        ];
      }));
      expected = true;
    };
    testDucksAreNumberedOnFromPortToPort = {
      expr = map (duck: "${duck.name} ${duck.port} ${duck.address}") (
        lib.sublist 7 2 (engine pond).services.duckpond.description.ducks
      );
      expected = [
        "duck-08 port0 10.21.1.18"
        "duck-09 port1 10.21.2.11"
      ];
    };
    testListedDucksReplaceGeneratedOnes = {
      expr =
        map (duck: duck.name)
        (engine (
          pond
          // {
            ducks = [
              {
                name = "a";
                port = "port0";
              }
              {
                name = "b";
                port = "port1";
              }
            ];
          }
        ))
        .services
        .duckpond
        .description
        .ducks;
      expected = [
        "a"
        "b"
      ];
    };
    testFunctionsOfPortsAreBoundByAddress = {
      expr = (engine pond).services.duckpond.cards;
      expected = [
        "0000:01:00.0"
        "0000:01:00.1"
      ];
    };
    testNoCardIsTakenByItsKind = {
      expr = (engine pond).boot.extraModprobeConfig;
      expected = "";
    };
    testCardsAreTakenByKindIfAsked = {
      expr =
        lib.hasInfix "options vfio-pci ids=8086:1593"
        (engine {
          vfio.ids = ["8086:1593"];
        })
        .boot
        .extraModprobeConfig;
      expected = true;
    };
    testCardsAreTakenByKindIfADescriptionSaysSo = {
      expr =
        lib.hasInfix "options vfio-pci ids=8086:1593"
        (engine {
          pond = import ../../hosts/pigeon/pond.nix // {vfio_ids = ["8086:1593"];};
          iommu = "intel";
        })
        .boot
        .extraModprobeConfig;
      expected = true;
    };
    testAmdsIommuNeedsNoSwitch = {
      expr = lib.filter (lib.hasInfix "iommu") (engine (pond // {iommu = "amd";})).boot.kernelParams;
      expected = ["iommu=pt"];
    };
    testCardsNeedAnIommu = {
      expr = complains "services.duckpond.iommu" (engine (pond // {iommu = null;}));
      expected = true;
    };
    testPondNeedsAKey = {
      expr = complains "services.duckpond.keyFile" (engine (pond // {keyFile = null;}));
      expected = true;
    };
    testReachableServerNeedsKeys = {
      expr = complains "services.duckpond.host" (engine {
        host = "0.0.0.0";
      });
      expected = true;
    };
    testReachableServerMayBeForced = {
      expr = failed (engine {
        host = "0.0.0.0";
        allowAnyone = true;
      });
      expected = [];
    };
    testHugePagesNeedACount = {
      expr = complains "hugePages.count" (engine {
        hugePages.size = "1GiB";
      });
      expected = true;
    };
    testHugePagesAreNotGuessed = {
      expr = lib.any (lib.hasPrefix "hugepages") (engine pond).boot.kernelParams;
      expected = false;
    };
    testSiblingsAreIsolatedToo = {
      expr =
        lib.filter (lib.hasPrefix "isolcpus")
        (engine (
          pond
          // {
            cpus = {
              isolated = [
                4
                2
              ];
              siblings = [
                5
                3
              ];
            };
          }
        ))
        .boot
        .kernelParams;
      expected = ["isolcpus=managed_irq,domain,2,3,4,5"];
    };
    testTheFirstProcessorIsNotIsolated = {
      expr = complains "cpus.isolated" (engine {
        ports = [((port 0) // {lcore = 0;})];
        keyFile = "/k";
        iommu = "intel";
        cpus.isolated = [0];
        firmware.package = null;
      });
      expected = true;
    };
    testAPortOutsideTheIsolatedOnesIsRefused = {
      expr = throws (engine (pond // {cpus.isolated = [2];})).services.duckpond.description;
      expected = true;
    };
    testTwoPortsOnOneProcessorAreRefused = {
      expr =
        throws
        (engine (
          pond
          // {
            ports = [
              (port 0)
              ((port 1) // {lcore = 2;})
            ];
          }
        ))
        .services
        .duckpond
        .description;
      expected = true;
    };
    testKeysInTheStoreAreRefused = {
      expr = throws (engine {apiKeysFile = "${./units.nix}";}).services.duckpond.apiKeysFile;
      expected = true;
    };
    testMalformedAddressesAreRefused = {
      expr = throws (engine {vfio.functions = ["01:00.0"];}).services.duckpond.cards;
      expected = true;
    };
    testAWholeDescriptionIsKept = {
      expr = removeAttrs pigeon.services.duckpond.description [
        "kernels_hash"
        "nest_hash"
      ];
      expected = import ../../hosts/pigeon/pond.nix;
    };
    testPigeonsKernel = {
      expr = pigeon.boot.kernelParams;
      expected = [
        "default_hugepagesz=1G"
        "hugepagesz=1G"
        "hugepages=2"
        "intel_iommu=on"
        "iommu=pt"
        "isolcpus=managed_irq,domain,2,3,4,5,6,7,8,9"
        "nohz_full=2,3,4,5,6,7,8,9"
        "rcu_nocbs=2,3,4,5,6,7,8,9"
      ];
    };
    testPigeonsCards = {
      expr = pigeon.services.duckpond.cards;
      expected = [
        "0000:01:00.0"
        "0000:01:00.1"
        "0000:01:00.2"
        "0000:01:00.3"
      ];
    };
    testPigeonsPagesAreMounted = {
      expr = map (mount: "${mount.where} ${mount.options}") pigeon.systemd.mounts;
      expected = ["/dev/hugepages1G pagesize=1G,mode=0755"];
    };
    testNvidiasDevicesOnlyIfAsked = {
      expr = map (
        enable: lib.any (lib.hasInfix "nvidia") ((engine {gpu.nvidia.enable = enable;}).systemd.services.duckpond.serviceConfig.DeviceAllow or [])
      ) [false true];
      expected = [
        false
        true
      ];
    };
    testEngineWithoutPortsSendsNoFrames = {
      expr = (engine {}).systemd.services.duckpond.serviceConfig.CapabilityBoundingSet;
      expected = "";
    };
    testTlsComesAsCredentials = {
      expr = let
        service =
          (engine {
            tls = {
              certificate = "/c.pem";
              key = "/k.pem";
            };
          })
          .systemd
          .services
          .duckpond
          .serviceConfig;
      in [
        service.LoadCredential
        (lib.hasSuffix "--tls-certificate %d/tls-certificate --tls-key %d/tls-key" service.ExecStart)
      ];
      expected = [
        [
          "tls-certificate:/c.pem"
          "tls-key:/k.pem"
        ]
        true
      ];
    };
    testPrometheusNeedsAKeyToo = {
      expr = complains "prometheus.keyFile" (engine {
        prometheus.enable = true;
        apiKeysFile = "/run/keys";
      });
      expected = true;
    };
    testSecretsAreDecryptedAtActivation = {
      expr = let
        config = engine (removeAttrs pond ["keyFile"]
          // {
            secrets.key = ../../secrets/vm/pond-key.age;
          });
      in [
        config.services.duckpond.description.key
        (config.system.activationScripts ? duckpond-secrets)
      ];
      expected = ["/run/duckpond-secrets/duckpond-key" true];
    };
    # As agenix declares it (modules/age.nix at 019784cb7e9d), as far as it is used.
    testSecretsAreAgenixsWhereItIs = {
      expr = let
        agenix = {lib, ...}: {
          options.age.secrets = lib.mkOption {
            default = {};
            type = lib.types.attrsOf (lib.types.submodule {
              options = {
                file = lib.mkOption {type = lib.types.path;};
                mode = lib.mkOption {type = lib.types.str;};
                owner = lib.mkOption {type = lib.types.str;};
                group = lib.mkOption {type = lib.types.str;};
              };
            });
          };
        };
        config = evaluate {
          imports = [agenix];
          services.duckpond = {
            enable = true;
            ports = [(port 0)];
            iommu = "intel";
            firmware.package = pkgs.runCommand "firmware" {} "mkdir $out";
            secrets.key = ../../secrets/vm/pond-key.age;
          };
        };
      in [
        config.services.duckpond.description.key
        (config.system.activationScripts ? duckpond-secrets)
        (map (secret: "${secret.owner} ${secret.mode}") (lib.attrValues config.age.secrets))
        (lib.elem "agenix" config.system.activationScripts.duckpond-firmware.deps)
      ];
      expected = [
        "/run/agenix/duckpond-key"
        false
        ["duckpond 0400"]
        true
      ];
    };
    testDuckIsAService = {
      expr = let
        service =
          (evaluate {
            services.duckd = {
              enable = true;
              publicKey = lib.concatStrings (lib.genList (_: "ab") 32);
              instances.main.link = "eth:enp1s0";
            };
          })
          .systemd
          .services;
      in [
        (lib.attrNames service)
        (lib.hasInfix ''"--link" "eth:enp1s0"'' service.duckd.serviceConfig.ExecStart)
      ];
      expected = [
        ["duckd"]
        true
      ];
    };
  }
