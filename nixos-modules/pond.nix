# The description of a pond, made and checked in plain Nix: what the modules give to the engine, which reads it again with the same rules
# (engine/pond). Needs nothing but Nix itself, 2.8 or newer.
#
#   pond = import ./pond.nix;
#   pond.pretty (pond.make { name = "mine"; ports = [ … ]; ducks = pond.ducks { … }; })
let
  inherit (builtins) attrNames isAttrs isList length mapAttrs removeAttrs toString;

  fields = import ./pond/fields.nix;
  consistent = import ./pond/check.nix;
  inherit (import ./pond/base.nix) fault;

  # Fields that are null and fields that are absent are the same.
  given = value:
    if isAttrs value
    then mapAttrs (_: given) (removeAttrs value (builtins.filter (name: value.${name} == null) (attrNames value)))
    else if isList value
    then map given value
    else value;
in rec {
  # A description, with the fields of engine/pond/README.md, to null or { field; problem; } for the first field that does not fit.
  check = description: let
    malformed = fields.form description;
  in
    if malformed != null
    then malformed
    else consistent description;

  # The same for the model: whether every duck can have a unit of a layer that has so many.
  checkModel = units: description: let
    found = length (description.ducks or []);
  in
    if found <= units
    then null
    else fault "ducks" "there are ${toString found} ducks, but a layer of the model has ${toString units} units; describe ${toString units} ducks at most";

  # A description to the same without fields that are null; or one line that names the first field that does not fit.
  make = description: let
    wrong = check description;
  in
    if wrong == null
    then given description
    else
      throw "${
        if wrong.field == ""
        then "the description"
        else wrong.field
      }: ${wrong.problem}";

  # The ducks behind one port: { port, subnet, start, count ? 8, first ? 11, prefix ? "duck-", macs ? null, memory ? null, link ? null }.
  ducks = import ./pond/ducks.nix;

  # A description to JSON: two spaces a level, fields in the order of engine/pond/README.md, a line break at the end.
  pretty = import ./pond/json.nix fields.order;
}
