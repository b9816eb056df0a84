# services.duckpond: what can be said about a host. Names that services.llama-cpp of nixpkgs has mean the same here.
{
  lib,
  config,
  ...
}: let
  inherit
    (lib)
    literalExpression
    mkEnableOption
    mkOption
    types
    ;
  cfg = config.services.duckpond;

  pciAddress = types.strMatching "[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7]";
  pciId = types.strMatching "[0-9a-f]{4}:[0-9a-f]{4}";
  mac = types.strMatching "[0-9a-f]{2}(:[0-9a-f]{2}){5}";
  cpu = types.ints.between 0 1023;
  # A file that is read where the engine runs. A path literal would be copied into the store, where everybody can read it.
  secretFile = types.nullOr (
    types.addCheck types.str (path: !lib.hasPrefix builtins.storeDir path && lib.hasPrefix "/" path)
    // {
      description = "absolute path outside the Nix store, as text";
    }
  );

  portModule = types.submodule (
    {config, ...}: {
      options = {
        name = mkOption {
          type = types.str;
          example = "port0";
          description = "What ducks and messages name it by, at most 16 characters.";
        };
        pci = mkOption {
          type = types.nullOr pciAddress;
          default = null;
          example = "0000:01:00.0";
          description = ''
            PCI address of the card's function, as `lspci -D` shows it. The function is then bound to vfio-pci, by this address alone, and
            the port's link is `dpdk:` and the address.
          '';
        };
        link = mkOption {
          type = types.str;
          default =
            if config.pci == null
            then throw "services.duckpond.ports: port ${config.name} has neither pci nor link"
            else "dpdk:${config.pci}";
          defaultText = literalExpression ''"dpdk:''${pci}"'';
          example = "eth:enp1s0";
          description = "What carries its frames: `eth:INTERFACE`, `udp:…`, or `dpdk:` and a PCI address.";
        };
        lcore = mkOption {
          type = types.nullOr cpu;
          default = null;
          example = 4;
          description = "Processor whose thread drives the port. Must be one of {option}`services.duckpond.cpus.isolated` if there are any.";
        };
        subnet = mkOption {
          type = types.nullOr (types.strMatching "[0-9.]+/[0-9]+");
          default = null;
          example = "10.21.1.0/24";
          description = "IPv4 network of the port's ducks, used for booting them and nowhere else.";
        };
        address = mkOption {
          type = types.nullOr types.str;
          default = null;
          example = "10.21.1.1";
          description = "The host's address there; without it, the first one of the subnet.";
        };
        mtu = mkOption {
          type = types.nullOr (types.ints.between 1500 9600);
          default = null;
          description = "Bytes that a frame may carry; without it, whatever the link says.";
        };
        ducks = {
          count = mkOption {
            type = types.ints.between 0 64;
            default = 8;
            description = "How many ducks are behind the port, where {option}`services.duckpond.ducks` does not list them.";
          };
          first = mkOption {
            type = types.ints.between 1 254;
            default = 11;
            description = "Last number of the first duck's address; the others follow it.";
          };
          macs = mkOption {
            type = types.nullOr (types.listOf mac);
            default = null;
            example = ["e0:51:d8:00:00:01"];
            description = ''
              Hardware addresses of the ducks, in order, as `duckpond ducks adopt` finds them. Without them the description holds addresses
              that no machine has, which is enough for planning.
            '';
          };
        };
      };
    }
  );

  duckModule = types.submodule {
    options = {
      name = mkOption {
        type = types.str;
        example = "duck-01";
        description = "What it is called, at most 16 characters.";
      };
      port = mkOption {
        type = types.str;
        example = "port0";
        description = "Name of the port that it is behind.";
      };
      mac = mkOption {
        type = types.nullOr mac;
        default = null;
        example = "e0:51:d8:00:00:01";
        description = "Its hardware address. Needed where it has an address, except behind `udp:` links.";
      };
      address = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "10.21.1.11";
        description = "The address that it is given when it boots.";
      };
      memory = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "24GiB";
        description = "Memory that it is expected to announce.";
      };
      link = mkOption {
        type = types.nullOr (types.ints.between 10 65535);
        default = null;
        example = 2500;
        description = "Mbit/s that its link is expected to have; without it, 2500.";
      };
    };
  };
in {
  options.services.duckpond = {
    enable = mkEnableOption "the engine of a pond: a server for a large language model whose experts are held by small machines";

    package = mkOption {
      type = types.package;
      defaultText = literalExpression "duckpond of this flake";
      description = "The package that has `bin/duckpond`.";
    };

    model = mkOption {
      type = types.nullOr types.path;
      default = null;
      example = "/var/lib/duckpond/model";
      description = ''
        Folder of the model, as `duckpond convert` writes it or as it is published. Without it the description's, else Duckling, a very small
        model that ships with the program. A path literal would copy the model into the store: give it as text.
      '';
    };

    host = mkOption {
      type = types.str;
      default = "127.0.0.1";
      example = "0.0.0.0";
      description = "IP address that the server listens on.";
    };

    port = mkOption {
      type = types.port;
      default = 8080;
      description = "Port that the server listens on.";
    };

    extraFlags = mkOption {
      type = types.listOf types.str;
      default = [];
      example = [
        "--numerics"
        "bf16"
      ];
      description = "Further arguments of `duckpond serve`.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the firewall lets others reach the server's port.";
    };

    settings = mkOption {
      type = types.attrsOf (
        types.oneOf [
          types.bool
          types.int
          types.float
          types.str
          (types.listOf types.str)
        ]
      );
      default = {};
      example = {
        mtp = true;
        temperature = 0.6;
        max_len = 32768;
      };
      description = "Settings as in `duckpond.toml`; `duckpond config` lists them. They are written to {file}`/etc/duckpond/duckpond.toml`.";
    };

    servedName = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "deepseek-v3.2";
      description = "The model's name in the API; without it, the name of its folder.";
    };

    allowedHosts = mkOption {
      type = types.listOf types.str;
      default = [];
      example = ["pigeon.home.arpa"];
      description = "Names under which clients address the server, beside localhost and addresses.";
    };

    watchdogSec = mkOption {
      type = types.ints.between 5 3600;
      default = 60;
      description = "Seconds after which systemd ends an engine that says nothing, and starts it again.";
    };

    # The pond.

    pond = mkOption {
      type = types.nullOr (types.attrsOf types.anything);
      default = null;
      example = literalExpression "import ./pond.nix";
      description = ''
        A whole description, as {file}`engine/pond/README.md` has it. Instead of {option}`services.duckpond.name`, `ports`, `ducks`, `cpus.isolated`
        and `hugePages`, which are then taken from it.
      '';
    };

    name = mkOption {
      type = types.str;
      default = config.networking.hostName;
      defaultText = literalExpression "config.networking.hostName";
      description = "The pond's name, for people and logs.";
    };

    ports = mkOption {
      type = types.listOf portModule;
      default = [];
      description = ''
        The host's ends of the broadcast domains in which ducks are. Without any port the ducks are in the engine's own process.
      '';
      example = literalExpression ''
        [
          { name = "port0"; pci = "0000:01:00.0"; lcore = 4; subnet = "10.21.1.0/24"; }
        ]
      '';
    };

    ducks = mkOption {
      type = types.listOf duckModule;
      default = [];
      description = ''
        The ducks. If none is listed, every port has as many as its `ducks.count` says, by the names `duck-01`, `duck-02` and so on.
      '';
    };

    publicKey = mkOption {
      type = types.nullOr (types.strMatching "[0-9a-f]{64}");
      default = null;
      description = ''
        The pond's public key, as `duckpond key public` prints it. It is no secret: ducks are told it when they boot, and obey whoever has the
        other half. Needed for boot images that are built with the system.
      '';
    };

    keyFile = mkOption {
      type = secretFile;
      default = null;
      example = "/var/lib/duckpond/pond.key";
      description = ''
        File of the pond's secret key on the host, which `duckpond key new` makes. Only {user}`duckpond` and root may read it. Set by
        {option}`services.duckpond.secrets.key`, or else by the description.
      '';
    };

    description = mkOption {
      type = types.attrsOf types.anything;
      readOnly = true;
      internal = true;
      description = "The checked description.";
    };

    descriptionFile = mkOption {
      type = types.nullOr types.package;
      readOnly = true;
      internal = true;
      description = "The description as the engine reads it.";
    };

    # The machine.

    cpus = {
      isolated = mkOption {
        type = types.listOf cpu;
        default = [];
        example = [
          2
          4
          6
          8
        ];
        description = "Processors that the kernel leaves alone (isolcpus, nohz_full, rcu_nocbs): those of the ports.";
      };
      siblings = mkOption {
        type = types.listOf cpu;
        default = [];
        example = [
          3
          5
          7
          9
        ];
        description = ''
          Second threads of the isolated processors' cores, which are isolated too. `lscpu -e` shows which share a CORE.
        '';
      };
      governor = mkOption {
        type = types.nullOr types.str;
        default = "performance";
        description = "Governor of the processors' frequency; null leaves it alone.";
      };
      maxCState = mkOption {
        type = types.nullOr (types.ints.between 0 9);
        default = null;
        example = 1;
        description = "Deepest sleep of an Intel processor (intel_idle.max_cstate): waking from a deep one takes longer than a frame's way.";
      };
    };

    hugePages = {
      size = mkOption {
        type = types.nullOr (
          types.enum [
            "2MiB"
            "1GiB"
          ]
        );
        default = null;
        example = "1GiB";
        description = "Size of the pages that the kernel sets aside. There is no default: say how much memory the machine can do without.";
      };
      count = mkOption {
        type = types.nullOr types.ints.positive;
        default = null;
        example = 2;
        description = "How many pages the kernel sets aside.";
      };
      mount = mkOption {
        type = types.nullOr types.path;
        default = null;
        example = "/dev/hugepages1G";
        description = "Where their file system is mounted; without it, {file}`/dev/hugepages`, which systemd mounts.";
      };
    };

    iommu = mkOption {
      type = types.nullOr (
        types.enum [
          "intel"
          "amd"
        ]
      );
      default = null;
      example = "intel";
      description = "Whose IOMMU is used, in pass-through mode (Intel's is also turned on). Needed where cards are bound to vfio-pci.";
    };

    vfio = {
      functions = mkOption {
        type = types.listOf pciAddress;
        default = [];
        example = ["0000:01:00.0"];
        description = "Functions that are bound to vfio-pci beside those of the ports.";
      };
      ids = mkOption {
        type = types.listOf pciId;
        default = [];
        example = ["8086:1593"];
        description = ''
          Vendor and device of cards that vfio-pci takes before the kernel's own driver sees them: **every** card of that kind in the machine.
          Leave it empty unless that is what you want; functions of ports are bound by their address.
        '';
      };
    };

    ddp = {
      enable = mkOption {
        type = types.bool;
        default = lib.any (link: lib.hasPrefix "dpdk:0" link) (map (port: port.link) (cfg.description.ports or []));
        defaultText = literalExpression "whether a port's link is a PCI card";
        description = ''
          Whether an E810's package of its pipeline is put where DPDK looks for it, {file}`/lib/firmware/intel/ice/ddp/ice.pkg`, uncompressed.
        '';
      };
      package = mkOption {
        type = types.nullOr types.path;
        default = null;
        description = "The file; without it, the one of `linux-firmware`.";
      };
    };

    gpu.nvidia.enable = mkEnableOption "NVIDIA's driver (open kernel modules), and its devices for the engine";

    memoryLock.users = mkOption {
      type = types.listOf types.str;
      default = [];
      example = ["alice"];
      description = "Users who may lock any amount of memory, to run `duckpond generate` or `duckpond bench` themselves.";
    };

    # Who may ask.

    apiKeysFile = mkOption {
      type = secretFile;
      default = null;
      example = "/run/agenix/duckpond-api-keys";
      description = ''
        File of API keys, one on a line, a name before it if wanted. Only {user}`duckpond` and root may read it. `systemctl reload duckpond` has it
        read again. Set by {option}`services.duckpond.secrets.apiKeys`.
      '';
    };

    allowAnyone = mkOption {
      type = types.bool;
      default = false;
      description = "Whether the server answers without API keys although others can reach its address.";
    };

    tls = {
      certificate = mkOption {
        type = types.nullOr types.path;
        default = null;
        example = "/var/lib/acme/pigeon/fullchain.pem";
        description = "PEM file with the certificate chain, for https. root reads it when the engine starts.";
      };
      key = mkOption {
        type = secretFile;
        default = null;
        example = "/var/lib/acme/pigeon/key.pem";
        description = "PEM file with its key. root reads it when the engine starts.";
      };
    };

    secrets = {
      key = mkOption {
        type = types.nullOr types.path;
        default = null;
        example = literalExpression "./secrets/pigeon/pond-key.age";
        description = "The pond's secret key, encrypted by age. It is decrypted when the system is activated, never in a build.";
      };
      apiKeys = mkOption {
        type = types.nullOr types.path;
        default = null;
        example = literalExpression "./secrets/pigeon/api-keys.age";
        description = "API keys, encrypted by age.";
      };
      identityFiles = mkOption {
        type = types.listOf types.str;
        default = ["/etc/ssh/ssh_host_ed25519_key"];
        description = ''
          Files on the host that can decrypt them. Used only where agenix' own module is absent; with it, `age.identityPaths` counts.
        '';
      };
    };

    # What the host gives its ducks.

    firmware = {
      package = mkOption {
        type = types.nullOr types.package;
        defaultText = literalExpression "duck-firmware of this flake";
        description = ''
          The package that has `share/duckpond/nest.elf` and `share/duckpond/fp9_kernels.elf`, for ducks without an operating system; null where all
          ducks keep Linux.
        '';
      };
      images = mkOption {
        type = types.nullOr types.package;
        defaultText = literalExpression "images made of the firmware and the description, if publicKey is set";
        description = "Boot images, as `duckpond netboot` writes them.";
      };
    };

    # Watching it.

    prometheus = {
      enable = mkEnableOption "a scrape of the engine's metrics by this machine's Prometheus (services.prometheus has to be enabled apart)";
      keyFile = mkOption {
        type = secretFile;
        default = null;
        description = "File of one API key alone, which Prometheus can read. Needed where the server asks for keys.";
      };
    };

    logs = {
      level = mkOption {
        type = types.str;
        default = "info";
        example = "warn,flock=debug";
        description = "What is logged: off, error, warn, info, debug, trace, or a filter.";
      };
      retention = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "30day";
        description = "How long the machine's journal is kept (MaxRetentionSec); the journal is one for all services.";
      };
      maxUse = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "2G";
        description = "How much of the disk the machine's journal may take (SystemMaxUse).";
      };
    };
  };
}
