# The fields of a description, in the order in which it is documented (engine/pond/README.md) and written, each with its form.
#
# A form is a function: the field's name, then its value, to a fault or null.
let
  inherit (builtins) attrNames filter isAttrs isInt isList isString listToAttrs toString;
  inherit (import ./base.nix) fault first imap item kind listed member shown;
  form = import ./form.nix;

  text = fits: expected: field: value:
    if !isString value
    then fault field "is ${kind value}, expected ${expected}; write it as a text, in quotes"
    else if !fits value
    then fault field "${shown value} is not ${expected}"
    else null;
  anything = text (_: true);

  # Of 16 or 32 bits; narrower limits are for the check.
  whole = most: field: value:
    if isInt value && value >= 0 && value <= most
    then null
    else fault field "is ${kind value}, expected a whole number from 0 to ${toString most}";
  short = whole 65535;
  long = whole 4294967295;

  size = field: value:
    if isInt value && value >= 0
    then null
    else text form.isSize "a size such as 24GiB or 512MiB, or a number of bytes" field value;

  list = each: field: value:
    if isList value
    then first (imap (i: each (item field i)) value)
    else fault field "is ${kind value}, expected a list";

  table = fields: field: value: let
    known = listToAttrs (map (known: {
        inherit (known) name;
        value = known;
      })
      fields);
    one = name:
      if !known ? ${name}
      then fault (member field name) "is no field; the fields here are ${listed (map (known: known.name) fields)}"
      else if value.${name} == null && !known.${name}.required
      then null
      else known.${name}.form (member field name) value.${name};
    absent = filter (known: known.required && !value ? ${known.name}) fields;
    missing = map (known: fault (member field known.name) "is missing; add it") absent;
  in
    if !isAttrs value
    then fault field "is ${kind value}, expected a set with the fields ${listed (map (known: known.name) fields)}"
    else first (map one (attrNames value) ++ missing);

  required = name: form: {
    inherit name form;
    required = true;
  };
  optional = name: form: {
    inherit name form;
    required = false;
  };

  path = anything "the path of a file or folder";
  narHash = text form.isNarHash "a NAR hash: sha256- and 44 characters of base64, as `nix hash path` prints it";
  mac = text form.isMac "a hardware address such as 00:00:5e:00:53:01";
  address = text form.isAddress "an IPv4 address such as 10.21.1.11";
  pci = text form.isPci "a PCI address such as 0000:01:00.0 (`lspci -D` lists them)";

  tables = {
    pond = [
      (required "name" (anything "a name"))
      (optional "model" path)
      (optional "key" path)
      (optional "kernels" path)
      (optional "kernels_hash" narHash)
      (optional "nest_hash" narHash)
      (optional "netboot" path)
      (optional "public_key" (text form.isPublicKey "a public key, 64 hexadecimal digits as `duckpond key public` prints them"))
      (optional "isolated" (list short))
      (optional "vfio_ids" (list (text form.isVfioId "vendor and device of a card, such as 8086:1593")))
      (optional "huge_pages" (table tables.huge_pages))
      (required "ports" (list (table tables.ports)))
      (optional "ducks" (list (table tables.ducks)))
    ];
    huge_pages = [
      (required "size" size)
      (required "count" long)
      (optional "mount" path)
    ];
    ports = [
      (required "name" (anything "a name"))
      (required "link" (text form.isLink "a link such as eth:enp3s0, udp:127.0.0.1:7000 or dpdk:0000:01:00.0"))
      (optional "pci" pci)
      (optional "lcore" short)
      (optional "subnet" (text form.isSubnet "a subnet such as 10.21.1.0/24, written by its first address and a prefix of 8 to 30 bits"))
      (optional "address" address)
      (optional "mtu" long)
    ];
    ducks = [
      (required "name" (anything "a name"))
      (required "port" (anything "the name of a port"))
      (optional "mac" mac)
      (optional "address" address)
      (optional "memory" size)
      (optional "link" long)
    ];
  };

  # The tables themselves come first: what has no fields at all is told before any single field.
  shape = description: let
    given = name: description.${name} or null;
    isTable = name: field: value:
      if isAttrs value
      then null
      else table tables.${name} field value;
    each = name:
      if isList (given name)
      then first (imap (i: isTable name (item name i)) (given name))
      else null;
    pages =
      if given "huge_pages" == null
      then null
      else isTable "huge_pages" "huge_pages" (given "huge_pages");
  in
    if isAttrs description
    then first [pages (each "ports") (each "ducks")]
    else null;
in {
  # The names of each table's fields, in order.
  order = builtins.mapAttrs (_: map (known: known.name)) tables;

  # Whether every field is known and has its form.
  form = description: first [(shape description) (table tables.pond "" description)];
}
