# Who can decrypt what: agenix' rules, files to public keys. `agenix -e secrets/pigeon/pond-key.age` edits a file for those named here, and
# `agenix -r` encrypts all of them again after a change.
let
  # Add your own: `ssh-keyscan pigeon` for a host, your own public key so that you can edit.
  hosts = {
    # pigeon = "ssh-ed25519 …";
  };
  people = {
    # alice = "ssh-ed25519 …";
  };
  all = builtins.attrValues people;

  # The test's key is in the repository: what is encrypted for it is no secret.
  test = builtins.replaceStrings ["\n"] [""] (builtins.readFile ../tests/vm/keys/identity.pub);

  for = host:
    if hosts ? ${host}
    then [hosts.${host}] ++ all
    else all;
in {
  "pigeon/pond-key.age".publicKeys = for "pigeon";
  "pigeon/api-keys.age".publicKeys = for "pigeon";

  "vm/pond-key.age".publicKeys = [test];
  "vm/api-keys.age".publicKeys = [test];
}
