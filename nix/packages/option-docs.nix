# The options of the modules, as Markdown.
{
  lib,
  nixosOptionsDoc,
  runCommand,
  nixosSystem,
  modules,
}: let
  evaluated = nixosSystem {
    system = "x86_64-linux";
    modules =
      modules
      ++ [
        {
          nixpkgs.hostPlatform = "x86_64-linux";
          system.stateVersion = "26.05";
          networking.hostName = "example";
        }
      ];
  };
  documentation = nixosOptionsDoc {
    options = {services = {inherit (evaluated.options.services) duckpond duckd;};};
    # Where an option is declared changes with every store path.
    transformOptions = option: option // {declarations = [];};
  };
in
  runCommand "duckpond-options" {} ''
    mkdir -p $out
    cp ${documentation.optionsCommonMark} $out/options.md
  ''
