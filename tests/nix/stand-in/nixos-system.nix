# Stands in for `lib.nixosSystem`: the options that the project sets, with the types that NixOS gives them, and a toplevel that holds what they
# come to. An option that the project sets and that is not declared here is an error, as it is in NixOS.
{lib}: {
  modules,
  specialArgs ? {},
  system ? null,
}:
lib.evalModules {
  class = "nixos";
  modules =
    [
      ./options.nix
      ./units.nix
      ./toplevel.nix
      {
        _module.args.pkgs = lib.mkDefault (import ./default.nix {system = "x86_64-linux";});
      }
    ]
    ++ modules;
  specialArgs =
    {
      # nixos/lib/utils.nix, as far as it is used.
      utils = import ./utils.nix {inherit lib;};
      modulesPath = toString ./modules;
    }
    // specialArgs;
}
