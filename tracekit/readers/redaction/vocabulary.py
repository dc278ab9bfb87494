"""Words that identify nobody: common account and machine names, technical terms, and names of system folders."""

from __future__ import annotations

import re

_ACCOUNTS = (
    b"root user users admin administrator guest nobody default public shared system local localhost localdomain "
    b"localhost.localdomain host ubuntu debian centos fedora ec2-user vagrant docker jovyan vscode runner jenkins "
    b"build builder conda linuxbrew git nvidia cuda gpu cpu python torch train test main work workspace home data "
    b"project projects opt usr tmp daemon bin mail lp gdm sddm lightdm dbus messagebus syslog systemd sshd avahi "
    b"colord rtkit cups munge slurm mysql postgres redis nginx www-data polkitd geoclue whoopsie kernoops chrony "
    b"ntp rpc rpcuser statd libvirt-qemu username hostname none null unknown azureuser azure aws gcp google amazon "
    b"etcd kube ceph kafka prometheus grafana influxdb mongodb memcached haproxy tomcat apache httpd sssd tss uuidd "
    b"landscape pollinate tcpdump fwupd-refresh usbmux speech-dispatcher hplip saned gnome-initial-setup pulse dnsmasq "
    b"dhcpcd lxd ollama gitlab-runner systemd-network systemd-resolve systemd-timesync systemd-coredump systemd-oom "
    b"zabbix nagios telegraf consul vault nomad rabbitmq elasticsearch kibana logstash sonarqube nvidia-persistenced "
    b"internal compute.internal cluster.local svc.cluster.local lan intranet example"
)
COMMON = frozenset(_ACCOUNTS.split())
"""Names that are so frequent among accounts and machines that they identify nobody. They are never redacted."""

_PROGRAMS = (
    b"abs acc acos act adam add addr adj algo align all alloc alpha amax amin amp and any api app apply arg args "
    b"argmax argmin array asin assert async atan atomic attn attention auto avg axis backend backward base batch "
    b"bench beta bf bfloat bias binary bit bits blas block bool boot box broadcast bsr buf buffer bucket build bus "
    b"bwd byte cache cal call callback capture card case cast cat cell cent char check child chunk class cleanup "
    b"clear clip clone close cls cluster cmd code col color collect column comm command compute con concat cond "
    b"config connect const constant container context control conv convolution coo copy cor core cos count cpp "
    b"create cross csr ctx cub cublas cudnn cufft cupti current cusparse custom cutlass cycle dataset date ddp debug "
    b"decode decoder deep default del delay delete delta dense depth dequeue desc dest detach dev device dgrad dgx "
    b"diff dim dims dir direct disk dispatch dist div domain don done dot double driver drop dropout dst dtype dummy "
    b"dump dynamic edge elementwise elu embed embedding empty encode encoder end engine enqueue entry epoch eps "
    b"equal erf error eval even event evt exec execute exit exp expand expert ext extern factor false fast feature "
    b"fetch ffn fft fifo file fill filter find finish first fixed flag flash flatten flip float floor flow flush fmt "
    b"fold for fork format forward frame free front full fun func function fuse fused future fwd gamma gate gather "
    b"gelu gem gemm gen get global glu gpt grad gradient graph grid group guard half handle handler hash head header "
    b"heap hidden hist hook host hub icon idx if image img impl import in inc ind index indices info infer inference "
    b"init initialize inner inplace input insert inst instance int integer interval io item iter iteration iterator "
    b"jax jit job join json kernel key kind kit label lambda lane large last latent launch launcher layer layout lazy "
    b"lead leaf learn left len length level lib library light like limit line linear link list listener live lm load "
    b"loader lock log logger logical logit logits long loop loss low lr lru lstm machine magic make manager map mark "
    b"mask master mat match math matmul matrix max mean mem memcpy memory memset merge message meta metadata method "
    b"metric micro mid min mix mixed mlp mma mode model module mov move mpi mul multi mutex mse nan name named native "
    b"nccl neg net network new next nhwc nchw nil nnz no node noise none norm normal normalize not notify null num "
    b"number numpy nvtx object off offset old on one ones online op open operator ops opt optim optimizer option or "
    b"order other out outer output pack pad padding page pair parallel param parameter parent parse part partial "
    b"pass patch path pat pause peer perf perm permute phase pin ping pipe pipeline pixel plan plot plugin point "
    b"pointer poll pool pooling pop pos position post pow pre predict prefetch prefill prefix prep prepare print "
    b"prod producer prof profile program proj projection promote prompt proxy ptr pull push put query queue quick "
    b"rand random range rank rate ratio raw ray reach read reader ready real rec receive record recv red reduce ref "
    b"region register relu remote remove render rep repeat replay replica report request res reset reshape residual "
    b"resnet resize rest result resume ret retry return rev reverse right ring rms rng rnn role roll root rope rot "
    b"round route router row rows run runtime sal sample sampler save scalar scale scan scatter sched schedule "
    b"scheduler scope score search seed seg segment select self send seq sequence sequential serial server service "
    b"session set setup shape shard share shift short show shuffle sig sigmoid sign signal silu sim simple sin single "
    b"sink size skip slice slot slow small smem softmax sol solve solver sort source space span spark spawn spec "
    b"split spmv sqrt square src stack stage start state static stats status std stem step stop storage store stream "
    b"stride string struct sub submit sum swap sweep switch sync synchronize table tag tail take tan tanh target task "
    b"tee temp temperature tensor term text thread threads tick tile time timer tim titan to token tokenizer tokens "
    b"top topk total trace tracer trainer transfer transform transformer transpose tree triton true trunc tune tuple "
    b"turn two type unary unfold uniform union unique unit unknown unpack unroll update upload upper val valid value "
    b"var variable vec vector version video view virtual vit vocab void wait warm warmup warp wave wgrad wait weight "
    b"shell gnome kde xorg wayland plasma desktop terminal screen tmux notebook jupyter lab session settings icons "
    b"games "
    b"weights while width window with worker wrap wrapper write writer xla zero zeros zip"
)
TECHNICAL = frozenset(_PROGRAMS.split())
"""Words that occur in the names of kernels, ranges and programs.

They are never collected as names of users or hosts, and are overwritten only as parts of paths and addresses.
"""

_FOLDERS = (
    b"home root users usr opt lib lib32 lib64 libexec bin sbin local share etc var tmp proc sys dev run mnt media srv "
    b"data scratch work workspace project projects sw boot snap lib-dynload site-packages dist-packages stubs compat "
    b"plugins drivers x64 x86 x86_64 aarch64 arm64 sbsa targets target linux linux64 host include extras cupti src "
    b"x86_64-linux-gnu aarch64-linux-gnu x86_64-linux sbsa-linux aarch64-linux target-linux-x64 host-linux-x64 "
    b"target-linux-sbsa-armv8 host-linux-armv8 target-windows-x64 host-windows-x64 nvidia nsight-systems "
    b"nsight-systems-cli nsight-compute nsight_systems streams cuda nvvm nvcc hpc_sdk comm_libs math_libs compilers "
    b"profilers cudnn cublas cufft curand cusolver cusparse cusparselt nccl nvshmem nvjitlink nvtx cuda_runtime "
    b"cuda_nvrtc cuda_cupti cufile tensorrt tensorrt_libs torch torchvision torchaudio triton numpy numpy.libs scipy "
    b"scipy.libs pandas jax jaxlib xla tensorflow tensorflow_core core python mpi openmpi mpich ucx hpcx ompi hwloc "
    b"pmix intel64 mkl gcc jvm perl systemd kernel modules extra updates conda anaconda anaconda3 miniconda "
    b"miniconda3 miniforge3 mambaforge envs pkgs base venv .venv .local .cache .conda env virtualenv julia julialang "
    b"artifacts compiled shm pts fd task maps windows system32 syswow64 winsxs program@files program@files@(x86) "
    b"man info doc licenses games icons applications themes fonts log logs cache spool lock "
    b"programdata appdata roaming microsoft nvidia@corporation nvidia@gpu@computing@toolkit nsight@systems "
    b"nsight@compute driverstore filerepository common@files ubuntu"
)
_KNOWN_FOLDERS = frozenset(word.replace(b"@", b" ") for word in _FOLDERS.split())
_NUMBERED = re.compile(rb"(?:cuda|python|pypy|v|gcc|rocm|nccl|cudnn|tensorrt|nsight[-_]systems|nsight[-_]compute|go)?"
                       rb"[-_]?\d+(?:\.\d+)*|\.{1,2}|[xX]+|pid_\d+_\w+|quadd_session_\d+", re.IGNORECASE)  # fmt: skip


def is_known_folder(name: bytes) -> bool:
    """Return whether a folder name is so common that it identifies nobody."""
    return name.lower() in _KNOWN_FOLDERS or name.lower() in COMMON or bool(_NUMBERED.fullmatch(name))
