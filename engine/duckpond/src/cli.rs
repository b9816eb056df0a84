//! The command line as typed: what may be said, and its help. Values are checked and merged in [`crate::settings`].

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::settings::Layer;

const AFTER_HELP: &str = "\
Settings come from, later ones winning: defaults; ./duckpond.toml, else $XDG_CONFIG_HOME/duckpond/config.toml (or the file of
--config); environment variables DUCKPOND_MODEL, DUCKPOND_MAX_TOKENS and so on; flags. `duckpond config` shows the result.

Exit codes: 0 done, 1 failure, 2 something wrong with the request, 130 stopped by Ctrl-C (128 + its number by another signal).";

/// Runs mixture-of-experts language models on one host and a flock of small machines.
///
/// Without a model of your own, the small model Duckling answers; it ships with the program.
#[derive(Debug, Parser)]
#[command(name = "duckpond", version, after_help = AFTER_HELP, max_term_width = 120)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answers one prompt.
    ///
    /// The text goes to standard output while it is made, everything else to standard error. Markers of the chat format are not
    /// shown; with --think, the reasoning comes first and the answer on a new line.
    Generate(GenerateArgs),
    /// Holds a conversation.
    ///
    /// One line is one message; /help lists the commands. Ctrl-C stops an answer, Ctrl-D ends the program. If standard input is
    /// no terminal, its lines are the messages.
    Chat(ChatArgs),
    /// Answers over HTTP: an API that clients of OpenAI's know, and a page to chat.
    ///
    /// The flags about choosing tokens say what holds where a request says nothing. SIGTERM lets running answers end, SIGHUP has the
    /// API keys read again.
    Serve(ServeArgs),
    /// Shows what is in a checkpoint folder, what it needs, and what is wrong with it.
    Inspect(InspectArgs),
    /// Writes a checkpoint's experts the way ducks hold them, and everything else beside them, into a folder of its own.
    ///
    /// The folder can be used wherever a checkpoint folder can, and the checkpoint is not needed any more. A conversion that was
    /// stopped goes on when the same command is given again.
    Convert(ConvertArgs),
    /// Reads a converted folder back and lists everything that is wrong with it.
    Verify(VerifyArgs),
    /// Shows what of this machine the engine would use: GPU, memory, what fits there, processors, ports; and what is missing.
    Doctor(DoctorArgs),
    /// Measures prefill and decode, beside this machine's memory bandwidth.
    Bench(BenchArgs),
    /// Prints the merged settings and where each value came from.
    Config(ConfigArgs),
    /// Shows a pond's ducks: as the engine that runs on it sees them, else as they announce themselves.
    Ducks(DucksArgs),
    /// Looks at the description of a pond.
    Pond(PondArgs),
    /// Tells whether this machine is set up for a pond: kernel parameters, huge pages, cards, limits.
    ///
    /// It reads and changes nothing. Whatever is missing is told with why it matters and what to do. Exit code 1 if anything is missing that the
    /// pond needs; what only costs speed is a warning.
    HostSetup(HostSetupArgs),
    /// Prints what runs here: this program, the system it is part of, the program that ducks are sent.
    Provenance(ProvenanceArgs),
    /// Makes and shows the key by which ducks know their host.
    Key(KeyArgs),
    /// Signs a program that ducks may run: writes FILE.sig beside it.
    Sign(SignArgs),
    /// Writes what bare machines boot to become ducks: over the network, from a disc or from a stick.
    Netboot(NetbootArgs),
}

/// `duckpond generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// The prompt; `-` reads it from standard input.
    #[arg(value_name = "PROMPT")]
    pub prompt: Option<String>,

    /// Reads the prompt from a file.
    ///
    /// One line end at the end of a file or of standard input does not belong to the prompt, except with --raw.
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,

    /// Takes the prompt as it is instead of as a user's message; markers such as `<think>` written out in it are markers.
    #[arg(long, conflicts_with_all = ["system", "think", "no_think", "url"])]
    pub raw: bool,

    /// Writes one CSV row per token: index, ms, token, text, draft, accepted.
    ///
    /// The file appears when the answer has ended, also one that was stopped; an answer without a token leaves none.
    #[arg(long, value_name = "FILE.csv", conflicts_with = "url")]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub conversation: ConversationFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub answer: AnswerFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond chat`.
#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub server: ServerFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub conversation: ConversationFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub answer: AnswerFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = address)]
    pub host: IpAddr,
    /// The port; 0: any free one.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    pub port: u16,
    /// A file of API keys, one on a line, a name before it if wanted; without it, nobody needs one.
    #[arg(long, value_name = "FILE")]
    pub api_keys: Option<PathBuf>,
    /// Serves without API keys although other machines can reach the address.
    #[arg(long)]
    pub allow_anyone: bool,
    /// A PEM file with the certificate chain, for https.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// A PEM file with its key.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// A name under which clients address this server, beside localhost and addresses; `*`: any. Can be given several times.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// A page elsewhere whose scripts may use this server, such as https://chat.example; `*`: all. Can be given several times.
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// The model's name in the API [default: the name of its folder].
    #[arg(long, value_name = "NAME")]
    pub served_name: Option<String>,
    /// Bytes of a request at most, such as 16MiB.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = crate::format::parse_bytes)]
    pub max_body: u64,
    /// Answers that may wait for their turn.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_queue: usize,
    /// Answers to one prompt at most.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = choices)]
    pub max_choices: usize,
    /// Seconds from a request to the end of its answer at most; 0: no limit.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=31_536_000))]
    pub request_timeout: u64,
    /// Seconds of silence in an event stream before a comment keeps it alive.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub keep_alive: u64,
    /// Connections at once.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = connections)]
    pub max_connections: usize,
    /// Seconds that running answers may take when the server stops.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub grace: u64,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub conversation: ConversationFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub answer: AnswerFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The checkpoint folder; without it, the model of the settings.
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// The checkpoint folder.
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: PathBuf,

    /// The folder to write: one that does not exist yet, an empty one, or one with an unfinished conversion.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,

    /// How experts are stored.
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ExpertFormat::Auto)]
    pub format: ExpertFormat,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub work: WorkFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// How experts are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExpertFormat {
    /// e4m3 where every expert is e4m3, else fp9.
    Auto,
    /// 8 bits with block scales, as published; exact.
    E4m3,
    /// 9 bits: exact for e4m3, rounds bf16.
    Fp9,
    /// 16 bits: exact for bf16.
    Bf16,
}

/// `duckpond verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The converted folder.
    #[arg(value_name = "OUT")]
    pub folder: PathBuf,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub work: WorkFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// What `duckpond bench` measures if not whole answers.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measures the products themselves: from memory beside plain reading, and from the cache beside other ways of computing them.
    Kernels(KernelsArgs),
    /// Measures a whole pond without its ducks: stage 0 on a GPU, and modelled ducks behind modelled wires.
    Pond(PondBenchArgs),
    /// Measures what HTTP adds to a token: the engine's own loop beside the same request to a server around it, in turns.
    Serve(ServingArgs),
    /// Measures the host's half of each layer on a GPU, without ducks, with random weights: beside reading its bytes once.
    Stage0(Stage0Args),
}

/// `duckpond doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond bench stage0`.
#[derive(Debug, Args)]
pub struct Stage0Args {
    /// Whose sizes.
    #[arg(long, value_name = "MODEL", value_enum, default_value_t = KnownDims::DeepseekV32)]
    pub dims: KnownDims,

    /// Tokens in flight; above 8 they are read as a prompt is.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub lanes: u32,

    /// Tokens in the caches.
    #[arg(long, value_name = "N", default_value_t = 2047, value_parser = clap::value_parser!(u32).range(0..=160_000))]
    pub context: u32,

    /// How often a pass is measured.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,

    /// Shows each kernel's time, too.
    #[arg(long)]
    pub kernels: bool,

    /// Writes the result as JSON.
    #[arg(long)]
    pub json: bool,

    /// Where numbers are rounded: `bf16`, `fp8` or `exact` [default: bf16].
    #[arg(long, value_name = "MODE")]
    pub numerics: Option<String>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub work: WorkFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond bench pond`.
#[derive(Debug, Args)]
pub struct PondBenchArgs {
    /// Whose sizes.
    #[arg(long, value_name = "MODEL", value_enum, default_value_t = PondDims::DeepseekV32)]
    pub dims: PondDims,

    /// How many ducks.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ducks: u32,

    /// Ports of the host that they are behind, each with a switch.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ports: u32,

    /// Tokens to measure.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub tokens: u32,

    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub context: u32,

    /// Speed of each duck's cable in Mbit/s.
    #[arg(long, value_name = "N", default_value_t = 2500, value_parser = clap::value_parser!(u32).range(10..=65535))]
    pub mbit: u32,

    /// Speed of each of the host's ports in Mbit/s.
    #[arg(long, value_name = "N", default_value_t = 25000, value_parser = clap::value_parser!(u32).range(10..))]
    pub host_mbit: u32,

    /// A duck's time for any step, in microseconds.
    #[arg(long, value_name = "N", conflicts_with = "duck_bandwidth", value_parser = clap::value_parser!(u32).range(..=10_000_000))]
    pub duck_us: Option<u32>,

    /// GB/s at which a duck reads the units that a step needs: an N100 with one channel of DDR4-3200 does about 17.
    #[arg(long, value_name = "GB/S", default_value = "17.3", value_parser = above_nought)]
    pub duck_bandwidth: f64,

    /// Bytes of a frame after its Ethernet header.
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1500..=9600))]
    pub mtu: u32,

    /// What computes stage 0; processors do so for small sizes alone.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = PondStage::Cuda)]
    pub stage0: PondStage,

    /// Writes the result as JSON.
    #[arg(long)]
    pub json: bool,

    /// Where numbers are rounded: `bf16`, `fp8` or `exact` [default: bf16, on processors exact].
    #[arg(long, value_name = "MODE")]
    pub numerics: Option<String>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub work: WorkFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// Sizes of a modelled pond's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PondDims {
    /// DeepSeek-V3.2: 61 layers, 7168 columns.
    #[value(name = "deepseek-v3.2")]
    DeepseekV32,
    /// Steps of DeepSeek-V3.2's size in 8 layers, and hardly any stage 0.
    Wide,
    /// 128 columns, 4 layers with experts.
    Tiny,
}

impl PondDims {
    /// As it is typed.
    pub fn name(self) -> &'static str {
        match self {
            PondDims::DeepseekV32 => "deepseek-v3.2",
            PondDims::Wide => "wide",
            PondDims::Tiny => "tiny",
        }
    }
}

/// What computes a modelled pond's stage 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PondStage {
    /// A GPU.
    Cuda,
    /// Processors.
    Cpu,
}

/// Models whose sizes are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KnownDims {
    /// DeepSeek-V3.2: 61 layers, 7168 columns.
    #[value(name = "deepseek-v3.2")]
    DeepseekV32,
}

/// `duckpond bench serve`.
#[derive(Debug, Args)]
pub struct ServingArgs {
    /// The prompt.
    #[arg(value_name = "PROMPT", default_value = "9973是质数吗")]
    pub prompt: String,

    /// Tokens of each answer at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    pub tokens: u32,

    /// How often each of the two is measured.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,

    /// Writes the result as JSON.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond bench kernels`.
#[derive(Debug, Args)]
pub struct KernelsArgs {
    /// Working set, such as 512MiB or 2GiB; it should be far larger than the processor's caches, and it is needed twice.
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = crate::format::parse_bytes)]
    pub bytes: u64,

    /// Writes the result as JSON.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub work: WorkFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub what: Option<BenchCommand>,

    /// Prompt lengths to read, in tokens.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "64,512")]
    pub prefill: Vec<usize>,

    /// Answer lengths to generate, in tokens; at least 2.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "64")]
    pub decode: Vec<usize>,

    /// Tokens in the caches before decoding starts.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub context: usize,

    /// Runs random weights, made for this run in the folder for temporary files and removed again.
    #[arg(long, conflicts_with = "model")]
    pub synthetic: bool,

    /// Weights that one token of the synthetic model reads, such as 512MiB or 2GiB.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = crate::format::parse_bytes, requires = "synthetic")]
    pub active_bytes: u64,

    /// Writes the result as JSON.
    #[arg(long)]
    pub json: bool,

    /// Drafts with the MTP layer.
    #[arg(long)]
    pub mtp: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub conversation: ConversationFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub answer: AnswerFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub machine: MachineFlags,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond ducks`.
#[derive(Debug, Args)]
pub struct DucksArgs {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub what: Option<DucksCommand>,

    /// The pond's description.
    #[arg(long, value_name = "FILE", global = true)]
    pub pond: Option<PathBuf>,

    /// Goes on showing it until Ctrl-C.
    #[arg(long)]
    pub watch: bool,

    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub every: f64,

    /// Writes JSON, one line a look.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// What can be done with ducks.
#[derive(Debug, Subcommand)]
pub enum DucksCommand {
    /// Listens for ducks and prints a row of the description for each that has none; with --link, a whole first description.
    Adopt(AdoptArgs),
    /// Has a duck start afresh; an engine must be running on the pond.
    Reset(ResetArgs),
    /// Has a duck without an operating system power off; an engine must be running on the pond.
    Off(ResetArgs),
    /// Wakes a duck that is off, by a magic packet (Wake-on-LAN); its BIOS setup must arm the card for that.
    Wake(ResetArgs),
}

/// `duckpond ducks adopt`.
#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// A link to listen on where there is no description yet: eth:INTERFACE or udp:ADDRESS:PORT[,PEER:PORT…]. Can be given several times.
    #[arg(long, value_name = "LINK")]
    pub link: Vec<String>,

    /// Adds the rows to the description.
    #[arg(long)]
    pub write: bool,

    /// Seconds to listen.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub wait: f64,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond ducks reset`, `off`, `wake`.
#[derive(Debug, Args)]
pub struct ResetArgs {
    /// Its name.
    #[arg(value_name = "DUCK")]
    pub duck: String,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond host-setup`.
#[derive(Debug, Args)]
pub struct HostSetupArgs {
    /// Looks and tells. There is no other mode: what is missing is for a person, or the NixOS module, to set up.
    #[arg(long, required = true)]
    pub check: bool,
    /// The pond's description; without it, what a host with ports on DPDK would need.
    #[arg(long, value_name = "FILE")]
    pub pond: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond provenance`.
#[derive(Debug, Args)]
pub struct ProvenanceArgs {
    /// The pond's description, which names the program for ducks.
    #[arg(long, value_name = "FILE")]
    pub pond: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond pond`.
#[derive(Debug, Args)]
pub struct PondArgs {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub what: PondCommand,
}

/// What can be done with a description.
#[derive(Debug, Subcommand)]
pub enum PondCommand {
    /// Shows what a description says, or the first field in it that is wrong.
    Check(FileArgs),
    /// Prints how to set up the switch: which of its ports are together, and what must be off.
    Switch(PondSwitchArgs),
}

/// `duckpond pond switch`.
#[derive(Debug, Args)]
pub struct PondSwitchArgs {
    /// The pond's description; its ports may still be without ducks.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond key`.
#[derive(Debug, Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    #[allow(missing_docs)]
    pub what: KeyCommand,
}

/// What can be done with a key.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Writes a new secret key to a file that does not exist yet, and prints its public key.
    New(FileArgs),
    /// Prints the public key of a secret one.
    Public(FileArgs),
}

/// Commands about one file.
#[derive(Debug, Args)]
pub struct FileArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// `duckpond sign`.
#[derive(Debug, Args)]
pub struct SignArgs {
    /// The program.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The file of the secret key; with --verify, of the public key or of the secret one.
    #[arg(long, value_name = "KEY")]
    pub key: PathBuf,

    /// Checks the signature that is there instead of making one.
    #[arg(long)]
    pub verify: bool,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// Flags about a server that answers instead.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Asks a server instead, such as http://localhost:8080; flags about model and machine then mean nothing.
    #[arg(long, value_name = "URL", conflicts_with_all = ["model", "pond", "ducks", "threads", "numerics", "stage0", "max_len", "chunk", "mtp", "no_mtp"])]
    pub url: Option<String>,

    /// A file whose first line is the API key for that server.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub api_key: Option<PathBuf>,

    /// A PEM file of the certificate authorities to trust for https, instead of the system's.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub ca: Option<PathBuf>,
}

/// `duckpond netboot`.
#[derive(Debug, Args)]
pub struct NetbootArgs {
    /// The folder to write to; files in it that have the same names are replaced.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,

    /// The firmware, an ELF that GRUB can start (multiboot2).
    #[arg(long, value_name = "NEST.elf")]
    pub firmware: PathBuf,

    /// The pond's description.
    #[arg(long, value_name = "FILE")]
    pub pond: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub program: ProgramFlags,
}

/// Flags about how a conversation is written down.
#[derive(Debug, Args)]
#[command(next_help_heading = "Conversation")]
pub struct ConversationFlags {
    /// Instructions before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Lets the model think before it answers.
    #[arg(long, overrides_with = "no_think")]
    pub think: bool,
    /// Has it answer at once (default).
    #[arg(long, overrides_with = "think")]
    pub no_think: bool,
}

/// Flags about choosing tokens.
#[derive(Debug, Args)]
#[command(next_help_heading = "Choosing tokens", allow_negative_numbers = true)]
pub struct AnswerFlags {
    /// Stops after so many tokens; 0: when the context is full [default: 0].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub max_tokens: Option<i64>,
    /// How freely tokens are chosen; 0: always the likeliest one [default: 0].
    #[arg(long, value_name = "T", value_parser = number)]
    pub temperature: Option<f64>,
    /// Chooses among the K likeliest tokens; 0: among all [default: 0].
    #[arg(long, value_name = "K", value_parser = whole)]
    pub top_k: Option<i64>,
    /// Chooses among the likeliest tokens that together have probability P [default: 1].
    #[arg(long, value_name = "P", value_parser = number)]
    pub top_p: Option<f64>,
    /// Chooses among tokens that are at least P times as likely as the likeliest [default: 0].
    #[arg(long, value_name = "P", value_parser = number)]
    pub min_p: Option<f64>,
    /// Makes tokens that were there before less likely; 1: not at all [default: 1].
    #[arg(long, value_name = "R", value_parser = number)]
    pub repetition_penalty: Option<f64>,
    /// The same seed gives the same answer [default: another one each time].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub seed: Option<i64>,
    /// Ends the answer before this text; can be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Drafts tokens with the model's MTP layer; the answer is as without.
    #[arg(long, overrides_with = "no_mtp")]
    pub mtp: bool,
    /// Does not draft (default).
    #[arg(long, overrides_with = "mtp")]
    pub no_mtp: bool,
}

/// Flags about the model and what runs it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model and machine", allow_negative_numbers = true)]
pub struct MachineFlags {
    /// The checkpoint folder [default: the Duckling that ships with the program].
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The description of a pond whose ducks compute, see `duckpond ducks adopt` [default: ducks in this process].
    #[arg(long, value_name = "FILE")]
    pub pond: Option<PathBuf>,
    /// How many ducks share the experts, in this process [default: 4].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub ducks: Option<i64>,
    /// How many threads compute; 0: one for each core [default: 0].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub threads: Option<i64>,
    /// Where numbers are rounded: `exact` (f32 throughout), `bf16` or `fp8` (as the model's own code) [default: exact, on a GPU bf16].
    #[arg(long, value_name = "MODE")]
    pub numerics: Option<String>,
    /// What computes attention and everything else that ducks don't: `cpu`, `cuda`, or `auto` (a GPU if there is one) [default: auto].
    #[arg(long, value_name = "WHAT")]
    pub stage0: Option<String>,
    /// Positions that caches may hold; 0: as many as the model allows [default: 0].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub max_len: Option<i64>,
    /// Prompt tokens that are read at once [default: 128].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub chunk: Option<i64>,
}

/// The one flag of commands that need no model in memory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Machine", allow_negative_numbers = true)]
pub struct WorkFlags {
    /// How many threads work; 0: one for each core [default: 0].
    #[arg(long, value_name = "N", value_parser = whole)]
    pub threads: Option<i64>,
}

/// Flags about the program itself.
#[derive(Debug, Args)]
#[command(next_help_heading = "Program")]
pub struct ProgramFlags {
    /// Reads this configuration file and no other.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What to log to standard error: off, error, warn, info, debug, trace, or a filter such as `warn,flock=debug`
    /// [default: warn].
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
}

fn above_nought(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| "not a number above 0".to_owned())
}

fn whole(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "not a whole number".to_owned())
}

/// An address to listen on; `localhost` is one.
fn address(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
        _ => text.parse().map_err(|_| "not an IP address, such as 127.0.0.1, 0.0.0.0 or ::1".to_owned()),
    }
}

fn choices(text: &str) -> Result<usize, String> {
    in_range(text, 1024)
}

fn connections(text: &str) -> Result<usize, String> {
    in_range(text, 100_000)
}

fn in_range(text: &str, most: usize) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=most).contains(n)).ok_or_else(|| format!("not a whole number from 1 to {most}"))
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = number(text)?;
    if (0.05..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("expected 0.05 to 3600 seconds".to_owned()) }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "not a number".to_owned())
}

/// A pair of flags that say yes and no.
fn switch(yes: bool, no: bool) -> Option<bool> {
    (yes || no).then_some(yes)
}

impl ConversationFlags {
    /// Adds what was typed.
    pub fn add_to(&self, layer: &mut Layer) {
        layer.put("system", self.system.clone());
        layer.put("think", switch(self.think, self.no_think));
    }
}

impl AnswerFlags {
    /// Adds what was typed.
    pub fn add_to(&self, layer: &mut Layer) {
        layer.put("max_tokens", self.max_tokens);
        layer.put("temperature", self.temperature);
        layer.put("top_k", self.top_k);
        layer.put("top_p", self.top_p);
        layer.put("min_p", self.min_p);
        layer.put("repetition_penalty", self.repetition_penalty);
        layer.put("seed", self.seed);
        layer.put("stop", (!self.stop.is_empty()).then(|| self.stop.clone()));
        layer.put("mtp", switch(self.mtp, self.no_mtp));
    }
}

impl MachineFlags {
    /// Adds what was typed.
    pub fn add_to(&self, layer: &mut Layer) {
        layer.put_path("model", self.model.as_deref());
        layer.put_path("pond", self.pond.as_deref());
        layer.put("ducks", self.ducks);
        layer.put("threads", self.threads);
        layer.put("numerics", self.numerics.clone());
        layer.put("stage0", self.stage0.clone());
        layer.put("max_len", self.max_len);
        layer.put("chunk", self.chunk);
    }
}

impl ProgramFlags {
    /// Adds what was typed; the file's own place is no setting.
    pub fn add_to(&self, layer: &mut Layer) {
        layer.put("log", self.log.clone());
    }
}

impl Command {
    /// The flags of this command, as the last layer of the settings.
    pub fn flags(&self) -> Layer {
        let mut layer = Layer::flags();
        match self {
            Command::Generate(GenerateArgs { conversation, answer, machine, .. })
            | Command::Chat(ChatArgs { conversation, answer, machine, .. })
            | Command::Serve(ServeArgs { conversation, answer, machine, .. })
            | Command::Config(ConfigArgs { conversation, answer, machine, .. }) => {
                conversation.add_to(&mut layer);
                answer.add_to(&mut layer);
                machine.add_to(&mut layer);
            }
            Command::Bench(BenchArgs { what: Some(BenchCommand::Kernels(KernelsArgs { work, .. })), .. })
            | Command::Convert(ConvertArgs { work, .. })
            | Command::Verify(VerifyArgs { work, .. }) => layer.put("threads", work.threads),
            Command::Bench(BenchArgs { what: Some(BenchCommand::Stage0(args)), .. }) => {
                layer.put("numerics", args.numerics.clone());
                layer.put("threads", args.work.threads);
            }
            Command::Bench(BenchArgs { what: Some(BenchCommand::Pond(args)), .. }) => {
                layer.put("numerics", args.numerics.clone());
                layer.put("threads", args.work.threads);
            }
            Command::Bench(BenchArgs { what: Some(BenchCommand::Serve(serving)), .. }) => {
                serving.machine.add_to(&mut layer);
            }
            Command::Bench(bench) => {
                layer.put("mtp", bench.mtp.then_some(true));
                bench.machine.add_to(&mut layer);
            }
            Command::Inspect(inspect) => inspect.machine.add_to(&mut layer),
            Command::Doctor(doctor) => doctor.machine.add_to(&mut layer),
            Command::Ducks(ducks) => layer.put_path("pond", ducks.pond.as_deref()),
            Command::Netboot(netboot) => layer.put_path("pond", netboot.pond.as_deref()),
            Command::HostSetup(setup) => layer.put_path("pond", setup.pond.as_deref()),
            Command::Provenance(provenance) => layer.put_path("pond", provenance.pond.as_deref()),
            Command::Pond(_) | Command::Key(_) | Command::Sign(_) => {}
        }
        self.program().add_to(&mut layer);
        layer
    }

    /// The configuration file that was asked for.
    pub fn config_file(&self) -> Option<&std::path::Path> {
        self.program().config.as_deref()
    }

    fn program(&self) -> &ProgramFlags {
        match self {
            Command::Generate(a) => &a.program,
            Command::Chat(a) => &a.program,
            Command::Inspect(a) => &a.program,
            Command::Convert(a) => &a.program,
            Command::Verify(a) => &a.program,
            Command::Bench(BenchArgs { what: Some(BenchCommand::Kernels(a)), .. }) => &a.program,
            Command::Bench(BenchArgs { what: Some(BenchCommand::Serve(a)), .. }) => &a.program,
            Command::Bench(BenchArgs { what: Some(BenchCommand::Stage0(a)), .. }) => &a.program,
            Command::Bench(BenchArgs { what: Some(BenchCommand::Pond(a)), .. }) => &a.program,
            Command::Bench(a) => &a.program,
            Command::Config(a) => &a.program,
            Command::Doctor(a) => &a.program,
            Command::Ducks(DucksArgs { what: Some(DucksCommand::Adopt(a)), .. }) => &a.program,
            Command::Ducks(DucksArgs {
                what: Some(DucksCommand::Reset(a) | DucksCommand::Off(a) | DucksCommand::Wake(a)),
                ..
            }) => &a.program,
            Command::Ducks(a) => &a.program,
            Command::Pond(PondArgs { what: PondCommand::Check(a) }) => &a.program,
            Command::Pond(PondArgs { what: PondCommand::Switch(a) }) => &a.program,
            Command::Key(KeyArgs { what: KeyCommand::New(a) | KeyCommand::Public(a) }) => &a.program,
            Command::Sign(a) => &a.program,
            Command::Netboot(a) => &a.program,
            Command::HostSetup(a) => &a.program,
            Command::Provenance(a) => &a.program,
            Command::Serve(a) => &a.program,
        }
    }
}

/// What clap has to say, on one line: the message without the usage block that follows it.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let message = text.split("\nUsage:").next().unwrap_or_default();
    let message = message.split("\nFor more information").next().unwrap_or_default();
    let words: Vec<&str> = message.split_whitespace().collect();
    let line = words.join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::settings::KEYS;

    #[test]
    fn the_table_of_flags_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_setting_has_a_flag_of_its_name_and_the_other_way_round() {
        let command = Cli::command();
        let config = command.find_subcommand("config").expect("it is a subcommand");
        let mut flags: Vec<String> = config
            .get_arguments()
            .filter_map(|a| a.get_long())
            .filter(|name| !["help", "config", "no-think", "no-mtp"].contains(name))
            .map(|name| name.replace('-', "_"))
            .collect();
        let mut keys: Vec<String> = KEYS.iter().map(|k| k.name.to_owned()).collect();
        flags.sort();
        keys.sort();
        assert_eq!(flags, keys);
    }

    #[test]
    fn of_opposite_flags_the_last_one_counts() {
        let parsed = Cli::try_parse_from(["duckpond", "config", "--think", "--no-think", "--no-mtp", "--mtp"]);
        let Command::Config(args) = parsed.expect("valid").command else { panic!("another command") };
        assert_eq!(switch(args.conversation.think, args.conversation.no_think), Some(false));
        assert_eq!(switch(args.answer.mtp, args.answer.no_mtp), Some(true));
    }

    #[test]
    fn a_usage_error_is_one_line_without_the_usage_block() {
        let error = Cli::try_parse_from(["duckpond", "generate", "--duck", "3", "x"]).expect_err("no such flag");
        let line = one_line(&error);
        assert_eq!(line, "unexpected argument '--duck' found tip: a similar argument exists: '--ducks'");
    }
}
