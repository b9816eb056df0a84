# JSON for people, and for files that are compared: two spaces a level, fields in a given order, a line break at the end.
#
# orders: names in order, for each table by the name of the field that holds it; `pond` is the outermost. What an order does not name comes
# after it, by name.
orders: let
  inherit (builtins) attrNames concatStringsSep elem filter isAttrs isList toJSON;

  enclosed = open: close: indent: parts:
    if parts == []
    then "${open}${close}"
    else "${open}\n${concatStringsSep ",\n" (map (part: "${indent}  ${part}") parts)}\n${indent}${close}";

  write = place: indent: value: let
    order = orders.${place} or [];
    names = filter (name: value ? ${name}) order ++ filter (name: !elem name order) (attrNames value);
    deeper = "${indent}  ";
  in
    if isAttrs value
    then enclosed "{" "}" indent (map (name: "${toJSON name}: ${write name deeper value.${name}}") names)
    else if isList value
    then enclosed "[" "]" indent (map (write place deeper) value)
    else toJSON value;
in
  value: "${write "pond" "" value}\n"
