"""The files of the known data sets, with the checksums they were published with."""

from eigenscape_papers.datasets._specs import Archive, FileSet, FileSpec, Form, ImageSpec
from eigenscape_papers.datasets.pixels import PixelScale

# MD5 and size of the published .gz; MD5 and size of what is inside. The makers published none for
# the latter: these were computed from files whose .gz has the published MD5.
_Idx = tuple[str, str, int, str, int]


def _idx_file(row: _Idx) -> FileSpec:
    name, packed, packed_size, plain, plain_size = row
    gz = Form(f"{name}.gz", f"md5:{packed}", packed_size, "gz")
    note = "of the unpacked file, computed from the published .gz"
    return FileSpec(name, (gz, Form(name, f"md5:{plain}", plain_size, note=note)))


def _idx_set(
    name: str,
    folder: str,
    rows: tuple[_Idx, ...],
    mirrors: tuple[str, ...],
    class_names: tuple[str, ...],
    statistics: PixelScale,
) -> ImageSpec:
    return ImageSpec(
        files=FileSet(name, (folder, ""), tuple(_idx_file(row) for row in rows), mirrors),
        split_files={
            "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
            "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        },
        num_samples={"train": 60_000, "test": 10_000},
        shape=(1, 28, 28),
        num_classes=10,
        class_names=class_names,
        statistics=statistics,
    )


# The constants below are the exact mean and standard deviation of the training pixels over 255, of
# integer sums, rounded once; a test recomputes them from the files.
MNIST = _idx_set(
    "mnist",
    "MNIST/raw",
    (
        (
            "train-images-idx3-ubyte",
            *("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            *("6bbc9ace898e44ae57da46a324031adb", 47_040_016),
        ),
        (
            "train-labels-idx1-ubyte",
            *("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            *("a25bea736e30d166cdddb491f175f624", 60_008),
        ),
        (
            "t10k-images-idx3-ubyte",
            *("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            *("2646ac647ad5339dbf082846283269ea", 7_840_016),
        ),
        (
            "t10k-labels-idx1-ubyte",
            *("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
            *("27ae3e4e09519cfbb04c329615203637", 10_008),
        ),
    ),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    tuple("0123456789"),
    PixelScale(mean=(0.13066047627384286,), std=(0.3081078038564627,)),
)

FASHION_MNIST = _idx_set(
    "fashion-mnist",
    "FashionMNIST/raw",
    (
        (
            "train-images-idx3-ubyte",
            *("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            *("f4a8712d7a061bf5bd6d2ca38dc4d50a", 47_040_016),
        ),
        (
            "train-labels-idx1-ubyte",
            *("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            *("9018921c3c673c538a1fc5bad174d6f9", 60_008),
        ),
        (
            "t10k-images-idx3-ubyte",
            *("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            *("8181f5470baa50b63fa0f6fddb340f0a", 7_840_016),
        ),
        (
            "t10k-labels-idx1-ubyte",
            *("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
            *("15d484375f8d13e6eb1aabb0c3f46965", 10_008),
        ),
    ),
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    PixelScale(mean=(0.2860405969887955,), std=(0.3530242445149226,)),
)


def _cifar_file(name: str, md5: str, size: int | None) -> FileSpec:
    plain = Form(name, f"md5:{md5}", size)
    return FileSpec(name, (plain, Form(f"{name}.xz", f"md5:{md5}", size, "xz")))


_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)

CIFAR10 = ImageSpec(
    files=FileSet(
        "cifar10",
        ("cifar-10-batches-py", ""),
        (
            _cifar_file("data_batch_1", "c99cafc152244af753f735de768cd75f", 31_035_704),
            _cifar_file("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec", 31_035_320),
            _cifar_file("data_batch_3", "54ebc095f3ab1f0389bbae665268c751", 31_035_999),
            _cifar_file("data_batch_4", "634d18415352ddfa80567beed471001a", 31_035_696),
            _cifar_file("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb", 31_035_623),
            _cifar_file("test_batch", "40351d587109b95175f43aff81a1287e", 31_035_526),
            _cifar_file("batches.meta", "5ff9c542aee3614f3951f8cda6e48888", 158),
        ),
        _TORONTO,
        Archive(
            Form(
                "cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
                170_498_071,
            ),
            "cifar-10-batches-py",
        ),
    ),
    split_files={
        "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test": ("test_batch",),
        "names": ("batches.meta",),
    },
    num_samples={"train": 50_000, "test": 10_000},
    shape=(3, 32, 32),
    num_classes=10,
    statistics=PixelScale(
        mean=(0.49139967861519607, 0.48215840839460783, 0.44653091444546567),
        std=(0.24703223246328201, 0.24348512800005553, 0.2615878417279645),
    ),
)

# No statistics here: they are computed from the file when it is read.
CIFAR100 = ImageSpec(
    files=FileSet(
        "cifar100",
        ("cifar-100-python", ""),
        (
            _cifar_file("train", "16019d7e3df5f24257cddd939b257f8d", None),
            _cifar_file("test", "f0ef6b0ae62326f3e7ffdfab6717acfc", None),
            _cifar_file("meta", "7973b15100ade9c7d40fb424638fde48", None),
        ),
        _TORONTO,
        Archive(
            Form(
                "cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
                169_001_437,
            ),
            "cifar-100-python",
        ),
    ),
    split_files={"train": ("train",), "test": ("test",), "names": ("meta",)},
    num_samples={"train": 50_000, "test": 10_000},
    shape=(3, 32, 32),
    num_classes=100,
    label_key=b"fine_labels",
    names_key=b"fine_label_names",
)

SHAKESPEARE = FileSet(
    "characters",
    ("tinyshakespeare", ""),
    (
        FileSpec(
            "input.txt",
            (
                Form(
                    "input.txt",
                    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                    1_115_394,
                ),
            ),
        ),
    ),
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",),
)
