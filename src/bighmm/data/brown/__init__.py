"""Brown clustering: classes of words that keep the most mutual information between neighbours.

This is the agglomeration of Brown et al. (1992) with a window:

1. Words are taken in order of frequency. Each word opens a class of its own. As soon as there are
   C + 1 classes, the pair whose merge loses the least information is merged (`window`).
2. In sweeps over the vocabulary, each word moves to the class that gives the highest information.
3. The C classes are merged until one is left. The tree of these merges gives each class a bit
   string, its path.

Letters: V word types, C classes, W slots of the window, N bigrams, n_ij the number of bigrams from
class i to class j, l_i and r_j the numbers of bigrams whose left word is in i and whose right word
is in j. With f(x) = x log x, the average mutual information (AMI) of a partition is

    I = (1/N) [ Σ_ij f(n_ij) - Σ_i f(l_i) - Σ_j f(r_j) + f(N) ].

Losses and scores in the code are N times an AMI, so that counts stay integers. The text is read
once, for its bigrams. From then on a word costs O(K·C), where K is the number of classes beside it.
"""

from bighmm.data.brown.bigrams import average_mutual_information
from bighmm.data.brown.clustering import Clusters, cluster
from bighmm.data.brown.paths import can_be_written, read_paths, write_paths
from bighmm.data.brown.table import ClassWords, class_table

__all__ = [
    "ClassWords",
    "Clusters",
    "average_mutual_information",
    "can_be_written",
    "class_table",
    "cluster",
    "read_paths",
    "write_paths",
]
